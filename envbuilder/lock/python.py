"""Python packages of an environment: uv decides, for the image's interpreter and C library, wheels only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError
from packaging.utils import canonicalize_name

from envbuilder.digest import Digest
from envbuilder.errors import HostError, IntegrityError, RefusedError, SpecError, UnavailableError
from envbuilder.lock.download import RETRYABLE
from envbuilder.lock.model import Wheel
from envbuilder.lock.settings import DEFAULT
from envbuilder.lock.tags import best_wheel, supported_tags
from envbuilder.lock.uv import PythonTarget, Uv, ask, ask_indexes
from envbuilder.lock.wanted import Wanted
from envbuilder.paths import file_name
from envbuilder.proc import ProgramFailed
from envbuilder.spec.toml import parse_toml

#: Questions to uv before a package that always comes from the wrong index is an error.
_MOST_QUESTIONS = 4
#: What uv says when an index, and not the declaration, is at fault.
_INDEX_FAILED = ("Failed to fetch", "error sending request", "Request failed after", "dns error", "timed out")
#: What uv says of an answer 4xx; of a project's page that is 404 it says that the package was not found.
_CLIENT_ERROR = re.compile(r"HTTP status client error \((4[0-9]{2}) ")


class UnknownPackage(SpecError):
    """No index has a package of that name."""


class NoWheel(SpecError):
    """A package has no wheel that runs on the image's Python, machine and C library."""


class Unsatisfiable(SpecError):
    """No set of versions fulfils all requirements; the message is uv's explanation."""


class WrongIndex(SpecError):
    """A package comes from another index than the one that it may come from, or that index does not have it."""


class UnnamedIndex(SpecError):
    """A package comes from an index that a lock cannot name."""


class IncompleteIndex(IntegrityError):
    """An index gives no sha256 or no size for a wheel."""


class IndexUnavailable(UnavailableError):
    """The Python index did not answer, or could not."""

    hint = "Check the index that is named (indexes.ROLE, UV_DEFAULT_INDEX, uv.toml; doctor lists them) and try again."


class IndexRefused(HostError):
    """The Python index wants credentials that this machine does not give it, or others."""

    hint = "Give uv the credentials of that index, for example UV_INDEX_<NAME>_PASSWORD."


class IndexGone(RefusedError):
    """What is configured as an index is none, or none any more: the same question gets the same answer."""

    hint = "Check the address of the index that is named (indexes.ROLE, UV_DEFAULT_INDEX, uv.toml; doctor lists them)."


def resolve_wheels(want: Wanted, target: PythonTarget, *, preferred: Iterable[Wheel] = (), uv: Uv) -> tuple[Wheel, ...]:
    """One wheel for each package that is wanted and for what these need, sorted by name; no layers yet.

    Args:
        want: requirements, limits and sources.
        target: what the wheels must run on.
        preferred: wheels whose version, and file while it fits, is kept where the requirements allow;
            of two of one name the last.
        uv: how uv is started.

    Raises:
        UnknownPackage, NoWheel, Unsatisfiable: the requirements ask for what is not there.
        WrongIndex, UnnamedIndex: a package comes from where it may not.
        IncompleteIndex, IndexUnavailable, IndexRefused, IndexGone: an index, or how it is reached, is at fault.
    """
    kept = {wheel.name: wheel for wheel in preferred}
    if not want.requires:
        return ()
    versions = {**want.wishes, **{wheel.name: wheel.version for wheel in kept.values()}}
    # uv reads the versions in an existing output as preferences; names and versions are all it wants of it.
    output = 'lock-version = "1.0"\ncreated-by = "envbuilder"\n' + ("" if versions else "packages = []\n")
    output += "".join(f'\n[[packages]]\nname = "{name}"\nversion = "{versions[name]}"\n' for name in versions)
    try:
        answer, roles = _answer(want, output, target, uv)
    except ProgramFailed as error:
        raise _explained(error, target) from error
    tags = supported_tags(target.python, target.platform, target.glibc)
    wheels = []
    for package in answer.packages:
        old = kept.get(canonicalize_name(package.name))
        same = old is not None and old.version == str(package.version) and best_wheel([old.file], tags) is not None
        if old and same and want.source_of(old.name) in {None, old.index}:
            wheels.append(old)
        else:
            files = {_file(wheel): wheel for wheel in package.wheels or ()}
            best = best_wheel(files, tags)
            if best is None:
                raise _no_wheel(package, list(files), target)
            wheels.append(_wheel(package, best, files[best], roles.get(package.name, DEFAULT), uv))
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _answer(want: Wanted, output: str, target: PythonTarget, uv: Uv) -> tuple[Pylock, dict[str, str]]:
    """Uv's answer and the role of each package's index.

    uv binds only what is asked for by name to an index: a package that another one needs, and that came from
    elsewhere, is asked for by name in the next question.
    """
    astray: dict[str, str] = {}
    for _ in range(_MOST_QUESTIONS):
        try:
            answer = Pylock.from_dict(parse_toml(ask(want, output, target, uv), source="uv"))
        except PylockValidationError as error:
            raise IncompleteIndex(f"uv's answer is no pylock.toml: {error}") from error
        if not (uv.extra or uv.indexes.several or want.sources):
            return answer, {}
        roles = _roles(want, answer, target, uv)
        astray = {name: role for name, role in sorted(roles.items()) if want.source_of(name) not in {None, role}}
        if not astray:
            return answer, roles
        want = replace(want, requires=(*want.requires, *astray))
    names = ", ".join(f"{name} from {role!r}" for name, role in astray.items())
    raise WrongIndex(f"sources: want {want.source_of(next(iter(astray)))!r} only, got {names}")


def _roles(want: Wanted, answer: Pylock, target: PythonTarget, uv: Uv) -> dict[str, str]:
    """Role of the index of each package of ``answer``."""
    pinned = tuple(f"{package.name}=={package.version}" for package in answer.packages)
    roles: dict[str, str] = {}
    for name, url in ask_indexes(replace(want, constraints=(*want.constraints, *pinned)), target, uv).items():
        role = uv.indexes.role_of(url)
        if role is None:
            raise UnnamedIndex(
                f"{name}: comes from an index that has no name in uv's configuration",
                hint="Give that index a name: a lock holds names of indexes, never addresses.",
            )
        roles[name] = role
    return roles


def _explained(error: ProgramFailed, target: PythonTarget) -> Exception:
    said = re.sub(r"//[^/@\s]*@", "//", error.stderr).strip().removeprefix("error: ")
    text = f"Python packages for {target.platform}, Python {target.python.version}, glibc {target.glibc}: {said}"
    if "401 Unauthorized" in said or "403 Forbidden" in said:
        return IndexRefused(text)
    if (answered := _CLIENT_ERROR.search(said)) and int(answered[1]) not in RETRYABLE:
        return IndexGone(text)
    if error.status < 0 or (any(mark in said for mark in _INDEX_FAILED) and "No solution found" not in said):
        return IndexUnavailable(text)
    if missing := re.findall(r"Because ([A-Za-z0-9._-]+) was not found in the package registry", said):
        return UnknownPackage(text, hint=f"Check the spelling of {missing[0]!r}, or name the index that has it.")
    if source_only := re.findall(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:[=<>!~]\S*)? ha(?:s|ve) no usable wheels", said):
        name = source_only[0]
        hint = (
            f"Build a wheel of {name} once, on {target.platform} with Python {target.python.version} and the packages "
            f"that it compiles against (pip wheel --no-deps --no-build-isolation {name}), put it in a folder, set "
            f'indexes.built to that folder and write {name} = "built" under [sources]; or leave it out under [replace].'
        )
        return NoWheel(f"{name}: there is source only, and nothing is compiled here. {text}", hint=hint)
    if re.search(r"no wheels", said):
        hint = "Ask for another version, or build a wheel for this Python, machine and glibc and give it an index."
        return NoWheel(text, hint=hint)
    if "No solution found" in said:
        return Unsatisfiable(text, hint="Loosen one of the requirements that the explanation names.")
    return error


def _file(wheel: PackageWheel) -> str:
    # Of an address the name is its last part as it is meant: PyTorch's indexes write torch-2.9.0%2Bcu130.
    last = unquote(urlsplit(wheel.url).path) if wheel.url else wheel.path or ""
    name = wheel.name or last.rpartition("/")[2]
    return file_name(name, source="uv's answer")


def _no_wheel(package: Package, files: Sequence[str], target: PythonTarget) -> NoWheel:
    there = ", ".join(files[:8]) or "no wheel at all"
    return NoWheel(
        f"{package.name} {package.version}: no wheel for {target.platform}, Python {target.python.version}, "
        f"glibc {target.glibc}; there is {there}",
        hint="Ask for another version, or build a wheel of it and give it an index of its own.",
    )


def _wheel(package: Package, file: str, found: PackageWheel, role: str, uv: Uv) -> Wheel:
    sha256 = found.hashes.get("sha256", "")
    size = uv.size_of(found.url) if found.size is None and found.url else found.size
    # An index is believed only until its bytes are here: they are what a build will use.
    ask_bytes = not sha256 or (uv.distrust and role != DEFAULT)
    if ask_bytes and found.url and (known := uv.bytes_of(found.url)):
        sha256, size = known[0].hex, known[1]
    if not sha256 or size is None:
        raise IncompleteIndex(
            f"{package.name} {package.version}: the index gives no {'size' if sha256 else 'sha256'} for {file}",
            hint="Use an index that gives hashes and sizes for its files (PEP 691, PEP 700).",
        )
    digest = Digest.parse(f"sha256:{sha256}")
    if found.url:
        uv.chosen(digest, found.url)
    return Wheel(
        name=canonicalize_name(package.name),
        version=str(package.version),
        file=file,
        digest=digest,
        size=size,
        layer="",
        index=role,
    )
