"""Who requires a package: chains from what the declaration asks for, read from the wheels' own METADATA."""

from __future__ import annotations

import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.errors import IntegrityError
from envbuilder.lock.model import Lock

#: Bytes of a METADATA: the largest in our locks has 0.2 MB, most of it a description.
_MAX_METADATA = 16 << 20


class BadMetadata(IntegrityError):
    """A wheel has no METADATA that can be read."""


@dataclass(frozen=True, slots=True)
class Need:
    """``name`` requires ``requirement``, as its METADATA says it; "" is the declaration."""

    name: str
    requirement: str


def wheel_requires(file: Path, *, source: str) -> tuple[str, ...]:
    """The Requires-Dist lines of the wheel ``file``.

    Raises:
        BadMetadata: it has none, or one that is too large.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = [
                name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            ]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > _MAX_METADATA:
                raise BadMetadata(f"{source}: want one METADATA of at most {_MAX_METADATA} bytes, got {len(names)}")
            with archive.open(names[0]) as stream:
                fields, _ = parse_email(stream.read(_MAX_METADATA))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        raise BadMetadata(f"{source}: no METADATA: {error}") from error
    return tuple(fields.get("requires_dist", ()))


def marker_environment(lock: Lock, full_version: str = "") -> dict[str, str]:
    """The variables of PEP 508 markers on the target of ``lock``, whatever this host is."""
    version = full_version or lock.python.version
    return {
        "implementation_name": "cpython",
        "implementation_version": version,
        "os_name": "posix",
        "platform_machine": lock.platform.machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": version,
        "python_version": lock.python.version,
        "sys_platform": "linux",
    }


def needs(
    roots: Sequence[str], requires: Mapping[str, Sequence[str]], environment: Mapping[str, Any]
) -> dict[str, tuple[Need, ...]]:
    """Who asks for each package, markers and extras taken into account.

    Args:
        roots: requirements of the declaration.
        requires: Requires-Dist by normalised name; a name that is absent requires nothing known.
        environment: variables of markers.
    """
    found: dict[str, dict[Need, None]] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting: deque[tuple[str, frozenset[str]]] = deque()

    def ask(owner: str, lines: Sequence[str], extras: frozenset[str]) -> None:
        for requirement in _active(lines, extras, environment):
            name = canonicalize_name(requirement.name)
            found.setdefault(name, {})[Need(owner, _text(requirement))] = None
            waiting.append((name, frozenset(map(canonicalize_name, requirement.extras))))

    ask("", roots, frozenset())
    while waiting:
        name, extras = waiting.popleft()
        if (name, extras) not in seen:
            seen.add((name, extras))
            ask(name, requires.get(name, ()), extras)
    return {name: tuple(who) for name, who in found.items()}


def _active(lines: Sequence[str], extras: frozenset[str], environment: Mapping[str, Any]) -> Iterator[Requirement]:
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # installers that read METADATA 1.x leave out what no longer parses
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
            yield requirement


def _text(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}{requirement.specifier}"


def chains(package: str, who: Mapping[str, Sequence[Need]]) -> tuple[tuple[Need, ...], ...]:
    """The shortest chain from the declaration through each direct requirer of ``package``, declaration first."""
    found = []
    for need in who.get(package, ()):
        if chain := _shortest(need, who):
            found.append(chain)
    return tuple(sorted(found, key=lambda chain: (len(chain), [need.name for need in chain])))


def _shortest(last: Need, who: Mapping[str, Sequence[Need]]) -> tuple[Need, ...]:
    queue: deque[tuple[Need, ...]] = deque([(last,)])
    seen = {last.name}
    while queue:
        chain = queue.popleft()
        if not chain[0].name:
            return chain
        for need in who.get(chain[0].name, ()):
            if need.name not in seen:
                seen.add(need.name)
                queue.append((need, *chain))
    return ()
