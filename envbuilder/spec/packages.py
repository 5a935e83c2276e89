"""The Python packages that a declaration asks for: requirements, pins, replacements, sources. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuilder.errors import SpecError
from envbuilder.spec.model import Pins, Replacement
from envbuilder.spec.table import Table, kind_of

#: The role of a Python index.
ROLE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\Z")
#: PEP 440, "Local version identifiers".
_LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*\Z")
#: PEP 508, "Names".
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
#: A path below site-packages, or from there to elsewhere in the prefix.
_FILE = re.compile(r"(?:\.\./)*[^/\0]+(?:/[^/\0]+)*\Z")
#: PEP 508 names, and '*' for any part of one.
_PATTERN = re.compile(r"[A-Za-z0-9*](?:[A-Za-z0-9._*-]*[A-Za-z0-9*])?\Z")
#: One pin of ``pip freeze``.
_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(\S+)\Z")
#: Variables of a marker that are set only when an extra or a dependency group is installed (PEP 508, PEP 751).
_OPTIONAL = re.compile(r"\b(?:extras?|dependency_groups)\b")
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")

#: The text of a file of the environment's folder; None when there is none; raises SpecError when it may not be used.
TextOf = Callable[[str], "str | None"]


def is_optional(marker: str) -> bool:
    """Whether ``marker`` asks for an extra or a dependency group."""
    return bool(_OPTIONAL.search(_LITERAL.sub("", marker)))


def requirements(top: Table, key: str) -> tuple[str, ...]:
    """``requires`` or ``constraints``: PEP 508, sorted, names normalised."""
    found = set()
    for where, value in top.items(key):
        if not isinstance(value, str):
            top.note(where, f"want a string, got {kind_of(value)}")
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
        if requirement.marker and is_optional(str(requirement.marker)):
            top.note(where, f"nothing here is an extra of something, so this would never be installed: {value!r}")
            continue
        requirement.name = canonicalize_name(requirement.name)
        found.add(str(requirement))
    return tuple(sorted(found))


def names(top: Table, key: str) -> tuple[str, ...]:
    """Names of Python packages: normalised, sorted."""
    return tuple(sorted({canonicalize_name(name) for name in top.texts(key, _NAME, "the name of a Python package")}))


def left_out(table: Table | None) -> dict[str, tuple[str, ...]]:
    """[leave-out]: files of a package that are not installed, as its RECORD lists them."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(table.values) if table else ():
        assert table is not None
        if not _NAME.match(name):
            table.note(table.at(name), f"not the name of a Python package: {name!r}")
        found[canonicalize_name(name)] = tuple(sorted(set(table.texts(name, _FILE, "a path as RECORD lists it"))))
    return found


def pins(table: Table | None, text_of: TextOf) -> Pins | None:
    """[pins]: an environment as ``pip freeze`` lists it, and where its local versions are built."""
    if table is None:
        return None
    file = table.text("file", required=True)
    local = _roles(table.table("local"), _LABEL, "a label of a local version such as 'cu129'")
    public = table.take("public", bool, False)
    table.finish()
    try:
        text = text_of(file) if file else ""
    except SpecError as error:
        table.note(table.at("file"), str(error))
        return None
    if text is None:
        table.note(table.at("file"), f"no such file beside env.toml: {file!r}")
        return None
    return Pins(versions=_frozen(text, file, table), local=local, public=public)


def _frozen(text: str, file: str, table: Table) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        pin = line.partition("#")[0].strip() if line.lstrip().startswith("#") else line.partition(" #")[0].strip()
        if not pin:
            continue
        where = f"{file}:{number}"
        match = _PIN.match(pin)
        if not match:
            table.note(where, f"want name==version, got {pin[:80]!r}")
            continue
        name = canonicalize_name(match[1])
        try:
            version = str(Version(match[2]))
        except InvalidVersion:
            table.note(where, f"not a version: {match[2][:80]!r}")
            continue
        if found.setdefault(name, version) != version:
            table.note(where, f"{name} stands twice: {found[name]}, {version}")
    return tuple(sorted(found.items()))


def replaced(table: Table | None) -> tuple[Replacement, ...]:
    """[replace]: packages that are not taken as they are asked for."""
    found: dict[str, Replacement] = {}
    for name, value in sorted(table.values.items()) if table else ():
        assert table is not None
        if not isinstance(value, dict):
            table.note(table.at(name), f"want a table, got {kind_of(value)}")
            continue
        each = Table(value, table.at(name), table.problems)
        instead, reason = each.text("with"), each.text("reason", required=True)
        each.finish()
        try:
            instead = str(Requirement(instead)) if instead else ""
        except InvalidRequirement:
            table.note(each.at("with"), f"not a PEP 508 requirement: {instead!r}")
            continue
        found[canonicalize_name(name)] = Replacement(name=canonicalize_name(name), instead=instead, reason=reason)
    return tuple(found[name] for name in sorted(found))


def sources(table: Table | None) -> Mapping[str, str]:
    """[sources]: the one index that a package may come from."""
    roles = _roles(table, _PATTERN, "a package's name or a pattern with '*'")
    return {name if "*" in name else canonicalize_name(name): role for name, role in roles.items()}


def _roles(table: Table | None, pattern: re.Pattern[str], what: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    values: Mapping[str, Any] = table.values if table else {}
    for key, role in sorted(values.items()):
        assert table is not None
        if not pattern.match(key):
            table.note(table.at(key), f"not {what}: {key!r}")
        elif not isinstance(role, str) or not ROLE.match(role):
            table.note(table.at(key), f"not an index role such as 'pytorch-cu130': {role!r}")
        else:
            found[key] = role
    return found
