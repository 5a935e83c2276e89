"""Python packages of an environment: uv decides, for the image's interpreter and C library, wheels only."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from envbuilder.digest import Digest
from envbuilder.errors import IntegrityError, SpecError, UnavailableError
from envbuilder.lock.model import Interpreter, Wheel
from envbuilder.lock.settings import Indexes
from envbuilder.lock.tags import best_wheel, glibc_minor, supported_tags
from envbuilder.oci.platform import Platform
from envbuilder.paths import file_name
from envbuilder.proc import ProgramFailed, Runner
from envbuilder.spec.toml import parse_toml

#: The highest glibc minor that uv 0.13.9 takes in --python-platform; a newer glibc runs older wheels too.
_UV_NEWEST_GLIBC_MINOR = 40
#: Seconds; the AI environment resolves in 20 s with a cold cache.
_TIMEOUT_S = 900.0
#: What uv says when an index, and not the declaration, is at fault.
_INDEX_FAILED = ("Failed to fetch", "error sending request", "Request failed after", "dns error", "timed out")


class UnknownPackage(SpecError):
    """No index has a package of that name."""


class NoWheel(SpecError):
    """A package has no wheel that runs on the image's Python, machine and C library."""


class Unsatisfiable(SpecError):
    """No set of versions fulfils all requirements; the message is uv's explanation."""


class UnnamedIndex(SpecError):
    """A package comes from an index that a lock cannot name."""


class IncompleteIndex(IntegrityError):
    """An index gives no sha256 or no size for a wheel."""


class IndexUnavailable(UnavailableError):
    """The Python index did not answer, or refused."""

    hint = "Check the index of uv's configuration (UV_DEFAULT_INDEX, uv.toml) and try again."


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTarget:
    """What the wheels must run on. ``full_version`` is the interpreter's, such as ``3.13.5``."""

    python: Interpreter
    full_version: str
    platform: Platform
    glibc: str

    @property
    def uv_platform(self) -> str:
        """The value of uv's --python-platform."""
        return f"{self.platform.machine}-manylinux_2_{min(glibc_minor(self.glibc), _UV_NEWEST_GLIBC_MINOR)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """How uv is started on this machine, and for this environment.

    environment: variables for uv; its configuration in them and in the user's files holds.
    extra: roles of the indexes that come before the default one, in order.
    size_of: bytes of the file at an address, for indexes whose pages do not say (PEP 503); None if unknown.
    """

    runner: Runner
    environment: Mapping[str, str]
    indexes: Indexes
    extra: Sequence[str] = ()
    size_of: Callable[[str], int | None] = lambda _: None


def resolve_wheels(
    requires: Sequence[str],
    target: PythonTarget,
    *,
    constraints: Sequence[str] = (),
    preferred: Iterable[Wheel] = (),
    fixed: Iterable[Wheel] = (),
    uv: Uv,
) -> tuple[Wheel, ...]:
    """One wheel for each package that ``requires`` needs, sorted by name; no layers yet.

    Args:
        requires: PEP 508 requirements.
        target: what the wheels must run on.
        constraints: PEP 508; limit versions, ask for nothing.
        preferred: wheels whose version, and file while it fits, is kept where the requirements allow.
        fixed: wheels that must be in the answer as they are: the parent's.
        uv: how uv is started.

    Raises:
        UnknownPackage, NoWheel, Unsatisfiable: the requirements ask for what is not there.
        IncompleteIndex, IndexUnavailable: an index is at fault.
    """
    kept = {wheel.name: wheel for wheel in (*preferred, *fixed)}
    pins = sorted(f"{wheel.name}=={wheel.version}" for wheel in fixed)
    wanted = [*requires, *pins]
    if not wanted:
        return ()
    # uv reads the versions in an existing output as preferences; names and versions are all it wants of it.
    output = 'lock-version = "1.0"\ncreated-by = "envbuilder"\n' + ("" if kept else "packages = []\n")
    output += "".join(
        f'\n[[packages]]\nname = "{wheel.name}"\nversion = "{wheel.version}"\n' for wheel in kept.values()
    )
    try:
        text = _compile(wanted, constraints, output, target, uv)
    except ProgramFailed as error:
        raise _explained(error, target, pins) from error
    try:
        answer = Pylock.from_dict(parse_toml(text, source="uv"))
    except PylockValidationError as error:
        raise IncompleteIndex(f"uv's answer is no pylock.toml: {error}") from error
    roles = _roles(wanted, constraints, answer.packages, target, uv) if uv.extra or uv.indexes.several else {}
    tags = supported_tags(target.python, target.platform, target.glibc)
    wheels = []
    for package in answer.packages:
        old = kept.get(canonicalize_name(package.name))
        if old and package.version and old.version == str(package.version) and best_wheel([old.file], tags):
            wheels.append(old)
        else:
            files = {_file(wheel): wheel for wheel in package.wheels or ()}
            best = best_wheel(files, tags)
            if best is None:
                raise _no_wheel(package, list(files), target)
            wheels.append(_wheel(package, best, files[best], roles.get(package.name, "default"), uv))
    return tuple(sorted(wheels, key=lambda wheel: wheel.name))


def _compile(
    wanted: Sequence[str], constraints: Sequence[str], output: str, target: PythonTarget, uv: Uv, *, pins: bool = False
) -> str:
    """Give uv's answer: a pylock.toml, or with ``pins`` a requirements.txt that says each package's index."""
    name = "pins.txt" if pins else "pylock.toml"
    argv = [find_uv_bin(), "pip", "compile", "requirements.in", "--constraints", "constraints.in"]
    argv += ["--output-file", name, "--no-header", "--quiet"]
    argv += ["--no-annotate", "--emit-index-annotation"] if pins else ["--format", "pylock.toml"]
    argv += ["--only-binary", ":all:", "--python-platform", target.uv_platform]
    argv += ["--python-version", target.full_version, "--python", sys.executable, "--no-python-downloads"]
    # In the environment, not in argv: an address may hold a credential, and argv is public.
    variables = {**uv.environment, "NO_COLOR": "1"}
    if extra := [f"{role}={uv.indexes.for_uv[role]}" for role in uv.extra if role in uv.indexes.for_uv]:
        variables["UV_INDEX"] = " ".join([*extra, uv.environment.get("UV_INDEX", "")]).strip()
    if "default" in uv.indexes.for_uv:
        variables["UV_DEFAULT_INDEX"] = uv.indexes.for_uv["default"]
    with tempfile.TemporaryDirectory(prefix="envbuilder-uv-") as temporary:
        folder = Path(temporary)
        # uv looks for a project's configuration from here upwards and stops at the first; the user's still holds.
        (folder / "uv.toml").touch()
        (folder / name).write_text(output)
        (folder / "requirements.in").write_text("\n".join(wanted) + "\n")
        (folder / "constraints.in").write_text("\n".join(constraints) + "\n")
        uv.runner(argv, env=variables, cwd=folder, timeout_s=_TIMEOUT_S)
        return (folder / name).read_text()


def _roles(
    wanted: Sequence[str], constraints: Sequence[str], packages: Sequence[Package], target: PythonTarget, uv: Uv
) -> dict[str, str]:
    """Role of the index of each package. uv's pylock.toml does not say it, so it is asked once more, all pinned."""
    pinned = [*constraints, *(f"{package.name}=={package.version}" for package in packages)]
    text = _compile(wanted, pinned, "", target, uv, pins=True)
    roles: dict[str, str] = {}
    for name, url in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==.*\n    # from (\S+)$", text, re.MULTILINE):
        role = uv.indexes.role_of(url)
        if role is None:
            raise UnnamedIndex(
                f"{name}: comes from an index that has no name in uv's configuration",
                hint="Give that index a name: a lock holds names of indexes, never addresses.",
            )
        roles[canonicalize_name(name)] = role
    return roles


def _explained(error: ProgramFailed, target: PythonTarget, pins: Sequence[str]) -> Exception:
    said = re.sub(r"//[^/@\s]*@", "//", error.stderr).strip().removeprefix("error: ")
    text = f"Python packages for {target.platform}, Python {target.python.version}, glibc {target.glibc}: {said}"
    if "401 Unauthorized" in said or "403 Forbidden" in said:
        return IndexUnavailable(
            text, hint="Give uv the credentials of that index, for example UV_INDEX_<NAME>_PASSWORD."
        )
    if error.status < 0 or (any(mark in said for mark in _INDEX_FAILED) and "No solution found" not in said):
        return IndexUnavailable(text)
    if missing := re.findall(r"Because ([A-Za-z0-9._-]+) was not found in the package registry", said):
        return UnknownPackage(text, hint=f"Check the spelling of {missing[0]!r}, or name the index that has it.")
    if conflicts := [pin for pin in pins if pin in said]:
        hint = f"The parent fixes {', '.join(conflicts)}: change these requirements, or lock the parent anew."
        return Unsatisfiable(text, hint=hint)
    if re.search(r"no (?:usable )?wheels", said):
        hint = "Ask for another version; a package without wheels must be built into one first."
        return NoWheel(text, hint=hint)
    if "No solution found" in said:
        return Unsatisfiable(text, hint="Loosen one of the requirements that the explanation names.")
    return error


def _file(wheel: PackageWheel) -> str:
    name = wheel.name or (wheel.url or wheel.path or "").rsplit("/", 1)[-1].split("#", 1)[0]
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
    if not sha256 or size is None:
        raise IncompleteIndex(
            f"{package.name} {package.version}: the index gives no {'size' if sha256 else 'sha256'} for {file}",
            hint="Use an index that gives hashes and sizes for its files (PEP 691, PEP 700).",
        )
    return Wheel(
        name=canonicalize_name(package.name),
        version=str(package.version),
        file=file,
        digest=Digest.parse(f"sha256:{sha256}"),
        size=size,
        layer="",
        index=role,
    )
