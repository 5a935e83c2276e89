"""How many connections all mounts of a node have to one registry together, without anybody who counts them.

    STATE/connections/HOST    a file of locks: byte n is slot n, held by who has a request under way;
                              from byte 65536 on: held by a process that waits for a slot

A lock (fcntl(2), F_SETLK) ends with its process, however that ends. What a reader waits for goes first: a quarter of
the slots are never taken by what is fetched ahead or in the background, and each mount has one connection besides
that is nobody else's, for reads only. So no read starves, whoever holds the slots and whatever becomes of him.

What nobody waits for does not take slot after slot while another process waits for one.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_log = logging.getLogger(__name__)

#: Seconds between two tries: of a read that waits, at first; of what nobody waits for.
_SOON_S, TRY_S = 0.005, 0.02
#: Where the queue begins, and how many processes it tells apart.
_QUEUE, _QUEUE_SIZE = 1 << 16, 1 << 12
#: One slot of so many is for reads only.
_FOR_READS = 4
#: The "slot" that is a mount's own.
_OWN = -1
_TAKEN = (errno.EACCES, errno.EAGAIN)


class Turn(Protocol):
    """The right of one thread to have a request under way."""

    def try_take(self) -> bool:
        """Take it, or keep it, for what nobody waits for; False, at once, when there is none."""

    def take(self) -> None:
        """Take it, or keep it, for a read; waits until there is one."""

    def give(self) -> None:
        """Give it back, if it was taken."""


class FreeTurn:
    """The right of everybody, where nothing is counted."""

    def try_take(self) -> bool:
        return True

    def take(self) -> None:
        """At once."""

    def give(self) -> None:
        """Nothing."""


def turns(directory: Path | None, host: str, limit: int) -> Callable[[], Turn]:
    """Makes a Turn for a thread, of ``limit`` connections to ``host`` that this node has; 0: as many as you like.

    directory: the node's state directory. One that cannot be written costs the limit, and nothing else.
    """
    if directory is None or not host or not limit:
        return FreeTurn
    try:
        slots = Slots(directory / "connections" / host.replace("/", "_"), limit)
    except OSError as error:
        _log.warning("connections to %s are not counted: %s", host, error)
        return FreeTurn
    return lambda: _SlotTurn(slots)


class Slots:
    """``limit`` slots in ``file``, as one process takes them. Thread-safe; a process must have one of a file.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, file: Path, limit: int) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._limit = limit
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._queued = False
        self._rests_until = 0.0

    def take(self, *, reads: bool) -> int | None:
        """A slot; None when all are taken."""
        with self._lock:
            if not reads and time.monotonic() < self._rests_until:
                return None
            places = list(range(0 if reads else self._limit // _FOR_READS, self._limit))
            random.shuffle(places)  # whoever begins elsewhere meets fewer that are taken
            for place in places:
                if place not in self._held and self._locked(place):
                    self._held.add(place)
                    self._queue(waits=False)
                    return place
            if reads and _OWN not in self._held:
                self._held.add(_OWN)
                return _OWN
            self._queue(waits=not reads)
            return None

    def give(self, slot: int) -> None:
        """Give ``slot`` back."""
        with self._lock:
            self._held.discard(slot)
            if slot == _OWN:
                return
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
            # A lock of our own is in nobody's way, so that this asks for others.
            if self._locked(_QUEUE, _QUEUE_SIZE):
                fcntl.lockf(self._file, fcntl.LOCK_UN, _QUEUE_SIZE, _QUEUE)
                self._queued = False
            else:
                self._rests_until = time.monotonic() + 2 * TRY_S

    def _queue(self, *, waits: bool) -> None:
        if waits != self._queued:
            place = _QUEUE + os.getpid() % _QUEUE_SIZE
            if waits:
                self._queued = self._locked(place)
            else:
                self._queued = False
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def _locked(self, start: int, size: int = 1) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, size, start)
        except OSError as error:
            return error.errno not in _TAKEN  # no more locks in the kernel: that costs the limit, and no read
        return True


class _SlotTurn:
    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._slot: int | None = None

    def try_take(self) -> bool:
        if self._slot is None:
            self._slot = self._slots.take(reads=False)
        return self._slot is not None

    def take(self) -> None:
        pause_s = _SOON_S
        while self._slot is None:
            self._slot = self._slots.take(reads=True)
            if self._slot is None:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, TRY_S)

    def give(self) -> None:
        if self._slot is not None:
            self._slots.give(self._slot)
        self._slot = None
