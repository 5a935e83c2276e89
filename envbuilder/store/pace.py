"""Pace: how many things one host is asked to do at a time, found by additive increase and multiplicative decrease.

What is done but for its end (a registry stores what it got, a disk makes it durable) takes no place: else all wait for
disks together, and then for the line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Where to begin, and the bounds: four parallel uploads lose sessions at some registries (tuist#12530), sixteen
#: are as many as any of the fast tools uses (registry.md 4.1, 9).
FIRST, LEAST, MOST = 4, 1, 16
#: Seconds within which further complaints are about the same burst.
_SAME_BURST_S = 1.0
#: Things that may be about to end, for each place inside: a host is never asked for more than twice its width.
_ENDING = 1


class Pace:
    """A gate of moving width. Thread-safe.

    Each success widens it by 1/width, so a whole round of successes by one; a complaint (429, 503) halves it.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._width, self._waiting, self._inside, self._ending = float(FIRST), 0, 0, 0
        self._halved_at_s = -_SAME_BURST_S

    @property
    def width(self) -> int:
        """How many may be inside now."""
        return int(self._width)

    @contextmanager
    def slot(self) -> Iterator[Callable[[], None]]:
        """Wait for a place inside, and hold it until what it gives is called, or to the end."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(self._has_room)
            self._waiting -= 1
            self._inside += 1
        is_ending = False

        def end() -> None:
            nonlocal is_ending
            with self._changed:
                if not is_ending:
                    is_ending = True
                    self._inside -= 1
                    self._ending += 1
                    self._changed.notify()

        try:
            yield end
        finally:
            with self._changed:
                if is_ending:
                    self._ending -= 1
                else:
                    self._inside -= 1
                self._changed.notify()

    def _has_room(self) -> bool:
        width = int(self._width)
        return self._inside < width and self._inside + self._ending < (1 + _ENDING) * width

    def faster(self) -> None:
        """Something went well."""
        with self._changed:
            # A gate that nobody waits at says nothing about what the host would bear.
            if self._waiting or not self._has_room():
                self._width = min(float(MOST), self._width + 1 / self._width)
                self._changed.notify()

    def slower(self) -> None:
        """The host complained."""
        with self._changed:
            now = self._clock()
            if now - self._halved_at_s >= _SAME_BURST_S:
                self._halved_at_s = now
                self._width = max(float(LEAST), self._width / 2)
