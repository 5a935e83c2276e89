"""env.toml to EnvSpec: pure, and every problem of the file reported at once.

The format is described in docs/formats/env.md.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.digest import Digest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.oci.platform import Platform
from envbuilder.paths import UnsafePath, entry_path
from envbuilder.spec.model import Base, Cuda, EnvSpec, FileRule, Support
from envbuilder.spec.toml import parse_toml

#: An environment's name is a path component of references, folders and layer ids.
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: OCI distribution-spec 1.1, "Pulling manifests": a version becomes a tag.
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_PYTHON = re.compile(r"3\.(?:[1-9][0-9])\Z")
_SUITE = re.compile(r"[a-z][a-z0-9.-]*\Z")
#: Debian policy 5.6.7: package names.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_ROLE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
_TOOLKIT = re.compile(r"[0-9]{2}(?:\.[0-9]+)?\Z")
_DRIVER = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}\Z")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]+[af]?\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MODE = re.compile(r"0?[0-7]{3}\Z")
#: Bytes of an env.toml; a larger one is no declaration.
MAX_SIZE = 1 << 20

_T = TypeVar("_T")
DigestOf = Callable[[str], "Digest | None"]


def parse(text: str, *, file: str, digest_of: DigestOf) -> EnvSpec:
    """The environment declared in ``text``.

    Args:
        text: an env.toml.
        file: how messages call it.
        digest_of: the digest of a file of the environment's folder; None when there is none;
            raises SpecError when it may not be used.

    Raises:
        SpecErrors: everything that is wrong with the file, each with its path in it.
    """
    top = _Table(parse_toml(text, source=file), "", [])
    spec = _environment(top, digest_of)
    if top.problems:
        raise SpecErrors(file, top.problems)
    assert spec is not None
    return spec


class _Table:
    """One table of the document: takes keys out, notes problems under their path."""

    def __init__(self, values: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self.values, self.path, self.problems = dict(values), path, problems
        self.known: list[str] = []

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def note(self, where: str, problem: str) -> None:
        self.problems.append(f"{where}: {problem}" if where else problem)

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        self.known.append(key)
        value = self.values.pop(key, default)
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        self.note(self.at(key), f"want {_KINDS[kind]}, got {_kind_of(value)}")
        return default

    def text(self, key: str, pattern: re.Pattern[str] | None = None, what: str = "", *, required: bool = False) -> str:
        if required and key not in self.values:
            self.note(self.at(key), "missing")
        value = self.take(key, str, "")
        if value and pattern and not pattern.match(value):
            self.note(self.at(key), f"not {what}: {value!r}")
            return ""
        return value

    def texts(self, key: str, pattern: re.Pattern[str] | None = None, what: str = "") -> tuple[str, ...]:
        found = []
        for where, value in self.items(key):
            if not isinstance(value, str):
                self.note(where, f"want a string, got {_kind_of(value)}")
            elif pattern and not pattern.match(value):
                self.note(where, f"not {what}: {value!r}")
            else:
                found.append(value)
        return tuple(found)

    def items(self, key: str) -> list[tuple[str, Any]]:
        return [(f"{self.at(key)}[{at}]", value) for at, value in enumerate(self.take(key, list, []))]

    def table(self, key: str) -> _Table | None:
        if key not in self.values:
            self.known.append(key)
            return None
        return _Table(self.take(key, dict, {}), self.at(key), self.problems)

    def finish(self) -> None:
        """Note every key that nobody took."""
        for key in self.values:
            close = get_close_matches(key.replace("_", "-"), self.known, n=1)
            self.note(self.at(key), "unknown key" + (f"; did you mean {close[0]!r}?" if close else ""))


_KINDS: Mapping[type, str] = {str: "a string", list: "an array", dict: "a table"}


def _kind_of(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a float"}
    return names.get(type(value)) or _KINDS.get(type(value)) or f"a {type(value).__name__}"


def _environment(top: _Table, digest_of: DigestOf) -> EnvSpec | None:
    name = top.text("name", NAME, "a name of lower-case letters, digits and inner '-'", required=True)
    version = top.text("version", _VERSION, "a version that can be a tag", required=True)
    extends = top.text("extends", NAME, "an environment's name")
    python = top.text("python", _PYTHON, "a Python version such as '3.13'")
    base = _base(top.table("base"))
    if extends and (base or python):
        top.note("extends", "excludes [base] and 'python', which come from the parent")
    elif not extends and not (base and python):
        top.note("", "want either 'extends' or both 'python' and [base]")
    if extends and extends == name:
        top.note("extends", "an environment cannot extend itself")
    spec = {
        "cuda": _cuda(top.table("cuda")),
        "requires": _requirements(top, "requires"),
        "constraints": _requirements(top, "constraints"),
        "extra_indexes": top.texts("extra-indexes", _ROLE, "an index role such as 'pytorch-cu130'"),
        "files": _files(top, digest_of),
        "env": _variables(top),
        "start": _start(top.table("start")),
        "support": _support(top.table("support")),
        "platforms": _platforms(top),
    }
    top.finish()
    if top.problems:
        return None
    return EnvSpec(name=name, version=version, extends=extends, python=python, base=base, **spec)  # type: ignore[arg-type]


def _base(table: _Table | None) -> Base | None:
    if table is None:
        return None
    suite = table.text("suite", _SUITE, "a Debian suite such as 'trixie'", required=True)
    packages = table.texts("packages", _PACKAGE, "a Debian package name")
    table.finish()
    return Base(suite=suite, packages=tuple(sorted(set(packages))))


def _cuda(table: _Table | None) -> Cuda | None:
    if table is None:
        return None
    toolkit = table.text("toolkit", _TOOLKIT, "a CUDA toolkit version such as '13.2' or '13'", required=True)
    driver = table.text("minimum-driver", _DRIVER, "a driver version such as '580.65.06'")
    capabilities = table.texts("accelerators", _CAPABILITY, "a compute capability such as '9.0'")
    table.finish()
    return Cuda(toolkit=toolkit, minimum_driver=driver, accelerators=capabilities)


def _requirements(top: _Table, key: str) -> tuple[str, ...]:
    found = set()
    for where, value in top.items(key):
        if not isinstance(value, str):
            top.note(where, f"want a string, got {_kind_of(value)}")
            continue
        try:
            requirement = Requirement(value)
        except InvalidRequirement:
            top.note(where, f"not a PEP 508 requirement: {value!r}")
            continue
        if requirement.url:
            # A URL names a host and pins no bytes; an index role and a version do both jobs (decision 10).
            top.note(where, f"want a version, not a URL, got {requirement.name!r} from a URL")
            continue
        if key == "constraints" and requirement.extras:
            top.note(where, f"a constraint has no extras: {value!r}")
            continue
        requirement.name = canonicalize_name(requirement.name)
        found.add(str(requirement))
    return tuple(sorted(found))


def _files(top: _Table, digest_of: DigestOf) -> tuple[FileRule, ...]:
    rules: dict[str, FileRule] = {}
    for where, value in top.items("files"):
        if not isinstance(value, dict):
            top.note(where, f"want a table, got {_kind_of(value)}")
            continue
        table = _Table(value, where, top.problems)
        source, path = table.text("source", required=True), table.text("path", required=True)
        mode = table.text("mode", _MODE, "octal permission bits such as '0644'") or "0644"
        table.finish()
        if not source or not path:
            continue
        try:
            path = entry_path(path, source=table.at("path"))
            if entry_path(source, source=table.at("source")) != source:
                _refuse(f"{table.at('source')}: want a plain relative path, got {source!r}")
            digest = digest_of(source)
        except (SpecError, UnsafePath) as error:
            top.note("", str(error))
            continue
        if digest is None:
            top.note(table.at("source"), f"no such file beside env.toml: {source!r}")
        elif path in rules:
            top.note(table.at("path"), f"stands twice: {path!r}")
        else:
            rules[path] = FileRule(source=source, path=path, mode=int(mode, 8), digest=digest)
    return tuple(rules[path] for path in sorted(rules))


def _refuse(problem: str) -> NoReturn:
    raise SpecError(problem)


def _variables(top: _Table) -> Mapping[str, str]:
    table = top.table("env")
    found = {}
    for name, value in sorted(table.values.items()) if table else ():
        if not _VARIABLE.match(name):
            top.note(f"env.{name}", "not a variable name")
        elif not isinstance(value, str):
            top.note(f"env.{name}", f"want a string, got {_kind_of(value)}")
        elif "\0" in value or "\n" in value:
            top.note(f"env.{name}", "want one line")
        else:
            found[name] = value
    return found


def _start(table: _Table | None) -> tuple[tuple[str, ...], ...]:
    if table is None:
        return ()
    commands = []
    for where, value in table.items("commands"):
        words: list[str] = []
        if isinstance(value, str):
            try:
                words = shlex.split(value)
            except ValueError as error:
                table.note(where, f"not a command line: {error}")
                continue
        elif isinstance(value, list) and all(isinstance(word, str) for word in value):
            words = value
        else:
            table.note(where, f"want a command line or an array of strings, got {_kind_of(value)}")
            continue
        if words:
            commands.append(tuple(words))
        else:
            table.note(where, "empty command")
    table.finish()
    return tuple(commands)


def _support(table: _Table | None) -> Support:
    if table is None:
        return Support()
    dates = []
    for key in ("released", "ends"):
        table.known.append(key)
        value = table.values.pop(key, "")
        if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
            dates.append(value.isoformat())
            continue
        if value:
            table.note(table.at(key), f"want a date such as 2026-11-30, got {value!r}")
        dates.append("")
    table.finish()
    released, ends = dates
    if released and ends and ends < released:
        table.note(table.at("ends"), f"is before support.released: {ends} < {released}")
    return Support(released=released, ends=ends)


def _platforms(top: _Table) -> tuple[Platform, ...]:
    if "platforms" not in top.values:
        top.known.append("platforms")
        return (Platform("x86_64"),)
    found = []
    for where, value in top.items("platforms"):
        if platform := _platform(top, where, value):
            found.append(platform)
    if not found and not any(problem.startswith("platforms") for problem in top.problems):
        top.note("platforms", "want one platform or more")
    return tuple(sorted(set(found)))


def _platform(top: _Table, where: str, value: object) -> Platform | None:
    if not isinstance(value, str):
        top.note(where, f"want a string, got {_kind_of(value)}")
        return None
    try:
        return Platform.parse(value)
    except SpecError as error:
        top.note(where, str(error))
        return None
