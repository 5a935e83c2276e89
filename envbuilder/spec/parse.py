"""env.toml to EnvSpec: pure, and every problem of the file reported at once.

The format is described in docs/formats/env.md.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Callable, Mapping
from typing import NoReturn

from envbuilder.digest import Digest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import DaemonReference, EnvironmentName, parse_reference
from envbuilder.paths import UnsafePath, entry_path
from envbuilder.spec.model import Base, Cuda, EnvSpec, FileRule, Support, System
from envbuilder.spec.packages import ROLE, TextOf, left_out, names, pins, replaced, requirements, sources
from envbuilder.spec.table import Table, kind_of
from envbuilder.spec.toml import parse_toml

#: An environment's name is a path component of references, folders and layer ids.
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: OCI distribution-spec 1.1, "Pulling manifests": a version becomes a tag.
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_PYTHON = re.compile(r"3\.(?:[1-9][0-9])\Z")
_SUITE = re.compile(r"[a-z][a-z0-9.-]*\Z")
#: Debian policy 5.6.7: package names.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_FULL_PYTHON = re.compile(r"3\.[1-9][0-9]\.[0-9]+\Z")
_GLIBC = re.compile(r"2\.[0-9]{1,3}\Z")
_SYSTEM = re.compile(r"[a-z][a-z0-9.-]*\Z")
_MOMENT = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z")
_TOOLKIT = re.compile(r"[0-9]{2}(?:\.[0-9]+)?\Z")
_DRIVER = re.compile(r"[0-9]+(?:\.[0-9]+){0,2}\Z")
_CAPABILITY = re.compile(r"[0-9]+\.[0-9]+[af]?\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MODE = re.compile(r"0?[0-7]{3}\Z")
#: Bytes of an env.toml; a larger one is no declaration.
MAX_SIZE = 1 << 20

DigestOf = Callable[[str], "Digest | None"]


def parse(text: str, *, file: str, digest_of: DigestOf, text_of: TextOf = lambda _: None) -> EnvSpec:
    """The environment declared in ``text``.

    Args:
        text: an env.toml.
        file: how messages call it.
        digest_of: the digest of a file of the environment's folder; None when there is none;
            raises SpecError when it may not be used.
        text_of: the same for its text.

    Raises:
        SpecErrors: everything that is wrong with the file, each with its path in it.
    """
    top = Table(parse_toml(text, source=file), "", [])
    spec = _environment(top, digest_of, text_of)
    if top.problems:
        raise SpecErrors(file, top.problems)
    assert spec is not None
    return spec


def _environment(top: Table, digest_of: DigestOf, text_of: TextOf) -> EnvSpec | None:
    name = top.text("name", NAME, "a name of lower-case letters, digits and inner '-'", required=True)
    version = top.text("version", _VERSION, "a version that can be a tag", required=True)
    extends = top.text("extends", NAME, "an environment's name")
    python = top.text("python", _PYTHON, "a Python version such as '3.13'")
    base = _base(top.table("base"), python, extends)
    if extends and (python or (base and (base.suite or base.system))):
        top.note("extends", "excludes 'python', base.suite and base.system, which come from the parent")
    elif not extends and not (base and python):
        top.note("", "want either 'extends' or both 'python' (\"3.13\") and [base] (suite = \"trixie\")")
    if extends and extends == name:
        top.note("extends", "an environment cannot extend itself")
    spec = {
        "cuda": _cuda(top.table("cuda")),
        "requires": requirements(top, "requires"),
        "constraints": requirements(top, "constraints"),
        "extra_indexes": top.texts("extra-indexes", ROLE, "an index role such as 'pytorch-cu130'"),
        "files": _files(top, digest_of),
        "env": _variables(top),
        "start": _start(top.table("start")),
        "support": _support(top.table("support")),
        "platforms": _platforms(top),
        "pins": pins(top.table("pins"), text_of),
        "replaced": replaced(top.table("replace")),
        "sources": sources(top.table("sources")),
        "allow_records": names(top, "allow-records"),
        "bytecode": top.take("bytecode", bool, True),
        "leave_out": left_out(top.table("leave-out")),
    }
    top.finish()
    if top.problems:
        return None
    return EnvSpec(name=name, version=version, extends=extends, python=python, base=base, **spec)  # type: ignore[arg-type]


def _base(table: Table | None, python: str, extends: str) -> Base | None:
    if table is None:
        return None
    needed = not extends and not {"system", "image"} & {*table.values}
    suite = table.text("suite", _SUITE, "a Debian suite such as 'trixie'", required=needed)
    packages = table.texts("packages", _PACKAGE, "a Debian package name")
    scripts = table.texts("allow-scripts", _PACKAGE, "a Debian package name")
    snapshot = table.text("snapshot", _MOMENT, "a moment such as '20261101T000000Z'")
    system = _system(table, python)
    table.finish()
    if snapshot and not suite:
        table.note(table.at("snapshot"), "goes with base.suite only: a child takes its parent's")
    key = table.at("system" if system and system.name else "image")
    if suite and system:
        table.note(key, "excludes base.suite")
    if system and (packages or scripts):
        table.note(key, "excludes packages and allow-scripts: envbuilder does not make that system")
    return Base(
        suite=suite,
        packages=tuple(sorted(set(packages))),
        system=system,
        allow_scripts=tuple(sorted(set(scripts))),
        snapshot=snapshot,
    )


def _system(table: Table, python: str) -> System | None:
    there = bool({"system", "image"} & {*table.values})
    needed = there and "image" not in table.values
    name = table.text("system", _SYSTEM, "a system such as 'ubuntu-24.04'", required=needed)
    interpreter = table.text("interpreter", _FULL_PYTHON, "a full version such as '3.12.3'", required=needed)
    glibc = table.text("glibc", _GLIBC, "a version of glibc such as '2.39'", required=needed)
    image = table.text("image")
    if not there:
        for key, value in (("interpreter", interpreter), ("glibc", glibc)):
            if value:
                table.note(table.at(key), "goes with base.image or base.system only")
        return None
    if interpreter and python and not interpreter.startswith(f"{python}."):
        table.note(table.at("interpreter"), f"want Python {python}, as 'python' says, got {interpreter}")
    if image and (problem := _not_an_image(image)):
        table.note(table.at("image"), problem)
    return System(name=name, interpreter=interpreter, glibc=glibc, image=image)


def _not_an_image(text: str) -> str:
    """What is wrong with ``text`` as the place of a base; "" if nothing is."""
    if text.startswith("docker-archive:"):
        return "" if text.removeprefix("docker-archive:").partition(":")[0] else f"no path in {text!r}"
    try:
        reference = parse_reference(text)
    except SpecError as error:
        return str(error)
    if isinstance(reference, EnvironmentName | DaemonReference):
        return (
            f"want host/name:tag, host/name@sha256:..., oci:DIR, oci-archive:FILE or docker-archive:FILE, got {text!r}"
        )
    return ""


def _cuda(table: Table | None) -> Cuda | None:
    if table is None:
        return None
    toolkit = table.text("toolkit", _TOOLKIT, "a CUDA toolkit version such as '13.2' or '13'", required=True)
    driver = table.text("minimum-driver", _DRIVER, "a driver version such as '580.65.06'")
    capabilities = table.texts("accelerators", _CAPABILITY, "a compute capability such as '9.0'")
    twice = table.texts("allow-twice", _PACKAGE, "a library's name without its CUDA suffix")
    table.finish()
    return Cuda(
        toolkit=toolkit, minimum_driver=driver, accelerators=capabilities, allow_twice=tuple(sorted(set(twice)))
    )


def _files(top: Table, digest_of: DigestOf) -> tuple[FileRule, ...]:
    rules: dict[str, FileRule] = {}
    for where, value in top.items("files"):
        if not isinstance(value, dict):
            top.note(where, f"want a table, got {kind_of(value)}")
            continue
        table = Table(value, where, top.problems)
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


def _variables(top: Table) -> Mapping[str, str]:
    table = top.table("env")
    found = {}
    for name, value in sorted(table.values.items()) if table else ():
        if not _VARIABLE.match(name):
            top.note(f"env.{name}", "not a variable name")
        elif not isinstance(value, str):
            top.note(f"env.{name}", f"want a string, got {kind_of(value)}")
        elif "\0" in value or "\n" in value:
            top.note(f"env.{name}", "want one line")
        else:
            found[name] = value
    return found


def _start(table: Table | None) -> tuple[tuple[str, ...], ...]:
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
            table.note(where, f"want a command line or an array of strings, got {kind_of(value)}")
            continue
        if words:
            commands.append(tuple(words))
        else:
            table.note(where, "empty command")
    table.finish()
    return tuple(commands)


def _support(table: Table | None) -> Support:
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


def _platforms(top: Table) -> tuple[Platform, ...]:
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


def _platform(top: Table, where: str, value: object) -> Platform | None:
    if not isinstance(value, str):
        top.note(where, f"want a string, got {kind_of(value)}")
        return None
    try:
        return Platform.parse(value)
    except SpecError as error:
        top.note(where, str(error))
        return None
