"""The reads of one mount that waited, in a ring in a mapped file: a worker writes, whoever has the file reads.

A read is noted when it begins to wait, so that what a job waits for now is seen, and again at its end. Reads that are
answered at once never come here. The file outlives a killed worker; what that one left unfinished is ``lost``.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

#: Waits that are kept: ``import torch`` without a trace has some hundred.
KEPT = 8192
_HEAD = mmap.PAGESIZE
_COUNT = struct.Struct("<Q")
#: When it began, on the monotonic clock, nanoseconds; offset; how long it waited, microseconds; bytes; device; state.
_ROW = struct.Struct("<QQIIHH4x")
_SIZE = _HEAD + KEPT * _ROW.size
_WAITING, _ANSWERED, _FAILED, _LOST = range(4)
_MOST_US = (1 << 32) - 1

Done = Callable[[OSError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One read that waited: ``size`` bytes at ``offset`` of device number ``device``.

    begun_s: on the monotonic clock. waited_s: until now, for one that still waits. failed: it was answered with EIO.
    """

    device: int
    offset: int
    size: int
    begun_s: float
    waited_s: float
    waiting: bool = False
    failed: bool = False


class WaitLog:
    """Writes the waits of one mount. Thread-safe; one process at a time."""

    def __init__(self, file: Path) -> None:
        """Raises OSError: it cannot be made."""
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(opened).st_size != _SIZE:
                os.pwrite(opened, bytes(_SIZE), 0)  # not a hole: a full disk must be an error here, not a SIGBUS
            self._map = mmap.mmap(opened, _SIZE)
        finally:
            os.close(opened)
        self._lock = threading.Lock()
        self._count = _COUNT.unpack_from(self._map)[0]
        for place in range(min(self._count, KEPT)):
            self._end(place, *_ROW.unpack_from(self._map, _at(place))[:1], state=_LOST, only=_WAITING)

    def noted(self, device: int, offset: int, size: int, done: Done) -> Done:
        """``done``, which also notes the end of the wait that begins now."""
        begun_ns = time.monotonic_ns()
        with self._lock:
            place = self._count % KEPT
            self._count += 1
            _ROW.pack_into(self._map, _at(place), begun_ns, offset, 0, size, device, _WAITING)
            _COUNT.pack_into(self._map, 0, self._count)

        def ended(error: OSError | None) -> None:
            self._end(place, begun_ns, state=_ANSWERED if error is None else _FAILED)
            done(error)

        return ended

    def _end(self, place: int, begun_ns: int, *, state: int, only: int = _WAITING) -> None:
        with self._lock:
            row = _ROW.unpack_from(self._map, _at(place))
            if row[0] != begun_ns or row[5] != only:
                return  # the ring went round
            waited_us = min((time.monotonic_ns() - begun_ns) // 1000, _MOST_US)
            _ROW.pack_into(self._map, _at(place), begun_ns, row[1], waited_us, row[3], row[4], state)


def read_waits(file: Path) -> list[Wait]:
    """The waits in ``file``, the oldest first; none when there is no file."""
    try:
        data = file.read_bytes()
    except OSError:
        return []
    if len(data) != _SIZE:
        return []
    now_ns = time.monotonic_ns()
    count = min(_COUNT.unpack_from(data)[0], KEPT)
    rows = sorted(_ROW.unpack_from(data, _at(place)) for place in range(count))
    return [
        Wait(
            device=device,
            offset=offset,
            size=size,
            begun_s=begun_ns / 1e9,
            waited_s=(now_ns - begun_ns) / 1e9 if state == _WAITING else waited_us / 1e6,
            waiting=state == _WAITING,
            failed=state == _FAILED,
        )
        for begun_ns, offset, waited_us, size, device, state in rows
        if begun_ns
    ]


def _at(place: int) -> int:
    return _HEAD + place * _ROW.size
