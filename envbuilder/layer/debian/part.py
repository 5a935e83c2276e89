"""What the computed layer takes from one package, and its memory: the data of all debs unpack for over a second.

A part follows from the bytes of the deb, which were verified, and from a rule, which says what is taken. So it is
remembered under both; a memory that is damaged or of another rule is absent, and the deb is read again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.layer.debian.control import Control
from envbuilder.lock.model import Deb
from envbuilder.store.records import RecordStore

#: Raised when the meaning of a field changes: older memories are then absent.
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of one package: its control, what status says of its conffiles, and the files that were wanted.

    conffiles: (absolute path, md5 in hex and flag), as the package orders them.
    contents: tree path -> bytes.
    """

    control: Control
    conffiles: tuple[tuple[str, str], ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict, hash=False)


class Parts:
    """Parts of packages in ``directory``. Safe across threads and processes.

    rule: changes whenever the part of any package would. told: what others say of packages, by ``part_key``: it is
        used and not remembered.
    """

    def __init__(self, directory: Path, *, rule: str, told: Mapping[str, bytes] | None = None) -> None:
        self._records, self._rule, self._told = RecordStore(directory), rule, told or {}

    def of(self, deb: Deb, read: Callable[[], Part]) -> Part:
        """The part of ``deb``: as it is remembered, or else ``read`` now."""
        key = part_key(deb, self._rule)
        data = self._records.get(key) or self._told.get(key)
        known = _load(data) if data else None
        if known is None:
            known = read()
            self._records.put(key, _dump(known))
        return known


def part_key(deb: Deb, rule: str) -> str:
    """Under what the part of ``deb`` by ``rule`` is remembered."""
    return Digest.of(canonical_json([_FORMAT, rule, str(deb.digest)])).hex


def _dump(part: Part) -> bytes:
    control = part.control
    return json.dumps(
        {
            "package": [control.package, control.version, control.architecture],
            "fields": dict(control.fields),
            "members": {name: [mode, _text(data)] for name, (mode, data) in control.members.items()},
            "conffiles": part.conffiles,
            "contents": {path: _text(data) for path, data in part.contents.items()},
        }
    ).encode()


def _load(data: bytes) -> Part | None:
    try:
        value = json.loads(data)
        package, version, architecture = value["package"]
        control = Control(
            package=package,
            version=version,
            architecture=architecture,
            fields=value["fields"],
            members={name: (mode, _bytes(text)) for name, (mode, text) in value["members"].items()},
        )
        return Part(
            control=control,
            conffiles=tuple((path, said) for path, said in value["conffiles"]),
            contents={path: _bytes(text) for path, text in value["contents"].items()},
        )
    except (ValueError, KeyError, TypeError):
        return None


def _text(data: bytes) -> str:
    return data.decode("latin-1")  # a character a byte, whatever the encoding is


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
