"""The part of dpkg's database that depends on the whole set: status, diversions, overrides, triggers.

Source: dpkg 1.22 lib/dpkg/dump.c (field order and form), deb-triggers(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.effects import Divert, Own
from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, directory, file
from envbuilder.oci.platform import Platform

_DATABASE = "var/lib/dpkg"
#: Order in which dpkg writes the fields that it knows (lib/dpkg/parse.c, fieldinfos).
_ORDER = (
    "Package",
    "Essential",
    "Protected",
    "Status",
    "Priority",
    "Section",
    "Installed-Size",
    "Origin",
    "Maintainer",
    "Bugs",
    "Architecture",
    "Multi-Arch",
    "Source",
    "Version",
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
    "Conffiles",
    "Description",
)
_RELATIONS = frozenset(_ORDER[_ORDER.index("Replaces") : _ORDER.index("Conffiles")])
_RELATION = re.compile(r"(?P<name>[^\s(]+)\s*(?:\(\s*(?P<op><<|<=|=|>=|>>|<|>)\s*(?P<version>[^\s)]+)\s*\))?\Z")


def dpkg_entries(
    system: System, platform: Platform, diversions: Mapping[str, Iterable[Divert]], overrides: Iterable[Own]
) -> Iterator[Entry]:
    """Every file below var/lib/dpkg that is not a package's own; ``diversions`` by package."""
    yield directory(f"{_DATABASE}/updates")
    yield directory(f"{_DATABASE}/parts")
    yield file(f"{_DATABASE}/info/format", b"1\n")
    yield file(f"{_DATABASE}/arch", f"{platform.debian}\n".encode())
    yield file(f"{_DATABASE}/arch-native", f"{platform.debian}\n".encode())
    yield file(f"{_DATABASE}/available", b"")
    yield file(f"{_DATABASE}/status", status(system))
    lines = [
        f"{item.path}\n{item.to}\n{package}\n".replace("<multiarch>", platform.multiarch)
        for package, items in sorted(diversions.items())
        for item in items
        if item.machine in ("", platform.machine)
    ]
    yield file(f"{_DATABASE}/diversions", "".join(lines).encode())
    rows = [f"{item.user} {item.group} {item.mode:o} /{item.path}\n" for item in overrides]
    yield file(f"{_DATABASE}/statoverride", "".join(rows).encode())
    yield from _triggers(system.controls.values())


def status(system: System) -> bytes:
    """var/lib/dpkg/status with every package of the set ``install ok installed``, sorted by name."""
    return b"".join(
        paragraph(control, system.conffiles.get(name, ())) + b"\n" for name, control in sorted(system.controls.items())
    )


def paragraph(control: Control, conffiles: Iterable[tuple[str, str]] = ()) -> bytes:
    """What dpkg's status says of one installed package; ``conffiles``: absolute path and md5."""
    values = dict(control.fields, Status="install ok installed")
    for name in _RELATIONS & values.keys():
        values[name] = _relations(values[name])
    if lines := [f"\n {path} {md5}" for path, md5 in conffiles]:
        values["Conffiles"] = "".join(lines)
    order = [*_ORDER, *(name for name in control.fields if name not in _ORDER)]
    return "".join(_field(name, values[name]) for name in order if name in values).encode("utf-8", "surrogateescape")


def _field(name: str, value: str) -> str:
    return f"{name}:{value}\n" if value.startswith("\n") else f"{name}: {value}\n"


def _relations(value: str) -> str:
    """A dependency field as dpkg writes it: one blank after each comma, around each bar and before each version."""
    groups = (group.split("|") for group in " ".join(value.split()).split(","))
    return ", ".join(" | ".join(_relation(item.strip()) for item in group) for group in groups if any(group))


def _relation(text: str) -> str:
    found = _RELATION.match(text)
    if found is None or not found["op"]:
        return text
    operator = {"<": "<=", ">": ">="}.get(found["op"], found["op"])
    return f"{found['name']} ({operator} {found['version']})"


def _triggers(controls: Iterable[Control]) -> Iterator[Entry]:
    """Who is interested in which trigger: var/lib/dpkg/triggers/File for paths, a file each for names."""
    named: dict[str, list[str]] = {}
    for control in controls:
        for line in control.text("triggers").splitlines():
            words = line.partition("#")[0].split()
            if len(words) == 2 and words[0] in ("interest", "interest-await", "interest-noawait"):
                mark = "/noawait" if words[0] == "interest-noawait" else ""
                named.setdefault(words[1], []).append(f"{control.info_name}{mark}")
    paths = [f"{name} {who}\n" for name in named if name.startswith("/") for who in named[name]]
    yield file(f"{_DATABASE}/triggers/File", "".join(paths).encode())
    yield file(f"{_DATABASE}/triggers/Unincorp", b"")
    for name, who in sorted(named.items()):
        if "/" not in name:
            yield file(f"{_DATABASE}/triggers/{name}", "".join(f"{item}\n" for item in who).encode())
