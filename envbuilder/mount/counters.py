"""Counters of one mount in a small mapped file: a worker counts, whoever has the file reads, at any moment.

The file outlives a killed worker, so a new one counts on. ``Snapshot`` is what a reader gets.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a mount has done so far.

    fetched_bytes, fetched_chunks: what came over the network, as stored in the blob, indexes included.
    requests: ranges of chunks that were asked for.
    hits: reads answered at once from local data (about: threads count without a lock).
    waits, waited_us: reads that had to wait for the network, and how long together, microseconds.
    ahead_chunks, background_chunks: how many of the fetched chunks nobody had asked for yet.
    refetched_chunks: chunks that came altered and were fetched again. failed: reads answered with EIO.
    hot_reads: reads answered from single pages that a hot bundle brought. hot_waits: of the waits, those for
    a page that was on its way in it. hot_bytes: of the fetched bytes, those of bundles. pushed_pages: pages of bundles
    that the kernel was given before it asked, and whose reads are not seen here.
    outages: times that the source did not answer and was asked again. restarts: workers replaced.
    origin_bytes, mirror_bytes: what came from the image's registry, and from mirrors of it: all that this start asked
    for, manifests, metadata and what was refused included.
    """

    fetched_bytes: int = 0
    fetched_chunks: int = 0
    hits: int = 0
    waits: int = 0
    waited_us: int = 0
    ahead_chunks: int = 0
    background_chunks: int = 0
    refetched_chunks: int = 0
    failed: int = 0
    outages: int = 0
    restarts: int = 0
    requests: int = 0
    hot_reads: int = 0
    hot_waits: int = 0
    hot_bytes: int = 0
    pushed_pages: int = 0
    origin_bytes: int = 0
    mirror_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


_NAMES = tuple(field.name for field in fields(Snapshot))
#: Counters of one process; a snapshot is the sum over all of them.
_SLOT = 32
#: Processes that can count: the worker (and, while there is none, the supervisor), the streamer, those that pull.
WORKER, STREAMER, PULLER = 0, 1, 2
SLOTS = _PAGE // 8 // _SLOT
#: The process that asked for the mount, which reads the image's documents.
STARTER = SLOTS - 1


class Counters:
    """The counters of one mount, open for counting by the process of ``slot``. ``add`` is exact under its lock."""

    def __init__(self, file: Path, slot: int = WORKER) -> None:
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(opened).st_size != _PAGE:
                os.pwrite(opened, bytes(_PAGE), 0)  # not a hole: a full disk must be an error here, not a SIGBUS
            self._map = mmap.mmap(opened, _PAGE)
        finally:
            os.close(opened)
        self._all = memoryview(self._map).cast("Q")
        self._values = self._all[slot * _SLOT : (slot + 1) * _SLOT]
        self._given = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Count ``count`` more of ``name``, a field of Snapshot."""
        self._values[_NAMES.index(name)] += count

    def add_given(self, size: int, by_mirror: bool) -> None:  # noqa: FBT001 - as a GivingTarget tells it
        """Count bytes that a source gave, from any thread."""
        with self._given:
            self.add("mirror_bytes" if by_mirror else "origin_bytes", size)

    def snapshot(self) -> Snapshot:
        """The counters as they are now."""
        return _snapshot(self._all)


def read_counters(file: Path) -> Snapshot:
    """The counters in ``file``; all 0 when there is none yet."""
    try:
        values = memoryview(file.read_bytes()).cast("Q")
    except OSError:
        return Snapshot()
    return _snapshot(values)


def _snapshot(values: memoryview) -> Snapshot:
    slots = range(0, len(values) - _SLOT + 1, _SLOT)
    return Snapshot(**{name: sum(values[slot + place] for slot in slots) for place, name in enumerate(_NAMES)})
