"""How far EROFS reads ahead of a start: as it did when the trace was recorded, until the start is over or another one.

Exact windows are right for what a trace foresees, and wrong for all else: files that are mapped come five times as
slowly, page by page (decisions/0007).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from envbuilder.mount.counters import Counters
from envbuilder.mount.host import kernel

#: What the kernel does by itself, bytes (VM_READAHEAD_PAGES).
_USUAL = 128 << 10
#: Seconds between two looks, and after the end of the stream until a start is over: its last pages are read unseen.
LOOK_S, _OVER_S = 0.25, 3.0
#: Reads that had to be fetched for themselves: a start as it was recorded has 0 to 6.
_MISSES = 16


class ReadAhead:
    """Of the EROFS mounts ``names``. counters: of the mount. streams: whether what a trace foresees still comes."""

    def __init__(self, names: frozenset[str], size: int, counters: Counters, streams: Callable[[], bool]) -> None:
        self._names, self._counters, self._streams = names, counters, streams
        self._ended_at = 0.0
        kernel.set_read_ahead(names, size)

    def look(self) -> bool:
        """Whether it is to be looked at again; if not, it is as usual from now on for what is opened."""
        now, seen = time.monotonic(), self._counters.snapshot()
        if not self._ended_at and not self._streams():
            self._ended_at = now
        over = self._ended_at and now - self._ended_at > _OVER_S
        if not over and seen.waits - seen.hot_waits < _MISSES:
            return True
        kernel.set_read_ahead(self._names, _USUAL)
        return False
