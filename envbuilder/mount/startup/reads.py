"""The reads of a mount, noted while they happen: what a start-up trace is made of."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from envbuilder.mount.host.fuse import Observer

#: Device, bytes, offset.
_READ = struct.Struct("<IIQ")


def recorder(file: Path) -> Observer:
    """Notes each read at the end of ``file``; a note is one write, so threads and a next worker do not disturb it."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def observe(device: int, offset: int, size: int) -> None:
        os.write(opened, _READ.pack(device, size, offset))

    return observe


def recorded(file: Path) -> Iterator[tuple[int, int, int]]:
    """What was noted in ``file``: device, offset, size."""
    data = file.read_bytes()
    for device, size, offset in _READ.iter_unpack(data[: len(data) // _READ.size * _READ.size]):
        yield device, offset, size
