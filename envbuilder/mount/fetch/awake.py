"""A clock for limits that stands still while this process does: suspended, frozen, or stopped by a batch system.

A read that waited when a node was suspended for an hour has not waited an hour for its registry. The monotonic clock
does not count a suspended kernel, but it counts a stopped process.
"""

from __future__ import annotations

import threading
import time

#: Seconds between two readings of a clock that is read twice a second: more, and nobody could have answered.
_STOOD_STILL_S = 5.0


class AwakeClock:
    """Seconds, less those in which nobody read it for long. Thread-safe; somebody must read it twice a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at, self._lost_s = time.monotonic(), 0.0

    def now(self) -> float:
        """The seconds now, never fewer than before."""
        with self._lock:
            now = time.monotonic()
            if now - self._read_at > _STOOD_STILL_S:
                self._lost_s += now - self._read_at
            self._read_at = now
            return now - self._lost_s
