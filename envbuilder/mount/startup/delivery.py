"""Where the pages of a bundle go: to the kernel first, to the store what a read waits for; the rest behind the start.

To write a page into the store costs as much as to push it, while a start has no core to spare; behind it one is idle.
But the kernel lets who pushes a page wait for a read of it, which the worker answers from the store: so the worker
says what its reads wait for (fetch/promised.py), and that is written first. What was pushed only is copied from the
kernel's cache when all has come (decisions/0007).

Threads: ``deliver`` is called by one, the pusher is the second, the third listens for what reads wait for.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from envbuilder.errors import EnvbuilderError
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.chunks.store import StoredBlob
from envbuilder.mount.counters import Counters
from envbuilder.mount.startup.hot import FramePlan, Opened, Part
from envbuilder.mount.startup.push import Pusher, joined

_log = logging.getLogger(__name__)

#: What the worker says of a read: frame, device, first page, count of pages.
AWAITED = struct.Struct("<IIQQ")
#: Frames that may wait for the kernel in memory; those behind them go into the store, and come from there.
_MOST_FRAMES = 16
#: A copy into the store leaves the cores to everybody else.
_NICE = 10


class Delivery:
    """Delivers frames of ``plans``. ``gone_by``: told how many are with the kernel or in the store, or that more is.

    blobs: where in the store; made when they are asked for. device: the open /dev/fuse; -1: there is only the store.
    awaited: a pipe of what reads wait for. files: the folder of the files that the kernel got the pages of.
    """

    def __init__(
        self,
        plans: Sequence[FramePlan],
        blobs: Mapping[int, StoredBlob],
        counters: Counters,
        gone_by: Callable[[int], None],
        *,
        device: int,
        awaited: int,
        files: Path,
    ) -> None:
        self._plans, self._blobs, self._gone_by, self._files = plans, blobs, gone_by, files
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._held: dict[int, Opened] = {}  # with the pusher
        self._awaited: dict[int, list[Part]] = {}
        self._next = self._done = 0
        self._only_pushed: list[int] = []
        self._pusher = Pusher(device, plans, blobs, counters, self._pushed) if device >= 0 else None
        if self._pusher:
            threading.Thread(target=self._listen, args=(awaited,), name="awaited", daemon=True).start()

    def begin(self, stored: int) -> None:
        """The first ``stored`` frames are in the store: the kernel gets them from there."""
        self._next = stored
        self._tell(stored)
        if self._pusher:
            for number in range(stored):
                self._pusher.push(number)

    def deliver(self, number: int, opened: Opened) -> None:
        """Frame ``number``, the next, has come.

        Raises:
            OSError, StoreRefused: the store has no room.
        """
        pusher = self._pusher
        if pusher is None or pusher.is_over:
            self._store_held()
            self._store(opened)
            self._next = number + 1
            self._tell(number + 1)
            return
        with self._lock:
            awaited, crowded = self._awaited.pop(number, []), len(self._held) >= _MOST_FRAMES
            if not crowded:
                self._held[number] = opened
            self._next = number + 1
        if crowded:
            self._store(opened)
        elif awaited:
            self._store(_of(opened, awaited))
        if crowded or awaited:
            self._tell(0)
        pusher.push(number, () if crowded else opened)

    def finish(self) -> None:
        """Wait until the kernel has what it takes; the rest is in the store then.

        Raises:
            OSError, StoreRefused: the store has no room.
        """
        if self._pusher:
            self._pusher.finish()
            self._store_held()
            self._tell(self._next)
        with self._lock:  # who listens is still there
            self._gone_by = lambda _frames: None

    def keep(self) -> None:
        """Copy into the store what the kernel alone has.

        Raises:
            OSError, StoreRefused: the store has no room.
        """
        os.nice(_NICE)
        numbers = sorted({part.device for number in self._only_pushed for part in self._plans[number].given})
        with ExitStack() as stack:
            try:
                files = {each: stack.enter_context((self._files / str(each)).open("rb", 0)) for each in numbers}
            except OSError as error:
                _log.debug("unmounted before all was kept: %s", error)
                return
            for number in self._only_pushed:
                for neighbours in joined((part, memoryview(b"")) for part in self._plans[number].given):
                    first, last = neighbours[0][0], neighbours[-1][0]
                    whole = first._replace(count=last.first + last.count - first.first)
                    try:
                        pages = os.pread(files[first.device].fileno(), whole.count * PAGE_SIZE, first.first * PAGE_SIZE)
                    except OSError as error:
                        _log.debug("unmounted before all was kept: %s", error)
                        return
                    # A read that fails behind its first pages gives these, and no error.
                    if len(pages) == min(
                        whole.count * PAGE_SIZE, self._blobs[first.device].size - first.first * PAGE_SIZE
                    ):
                        self._store([(whole, memoryview(pages))])

    def _pushed(self, number: int) -> None:
        with self._lock:
            if self._held.pop(number, None) is not None:
                self._only_pushed.append(number)
        self._tell(number + 1)

    def _store_held(self) -> None:
        """What the kernel did not take."""
        with self._lock:
            held, self._held = self._held, {}
        for _, opened in sorted(held.items()):
            self._store(opened)

    def _store(self, opened: Opened) -> None:
        with self._writing:  # a map of pages has one writer in a process
            for part, pages in opened:
                self._blobs[part.device].write_pages(part.first, pages, part.count)

    def _tell(self, frames: int) -> None:
        with self._lock:
            self._done = max(self._done, frames)
            self._gone_by(self._done)

    def _listen(self, awaited: int) -> None:
        with suppress(OSError):
            while data := os.read(awaited, AWAITED.size):  # whole: a pipe keeps what is written at once together
                number, device, first, count = AWAITED.unpack(data)
                pages = Part(device, 0, first, count)
                with self._lock:
                    opened = self._held.get(number)
                    if opened is None and number >= self._next:
                        self._awaited.setdefault(number, []).append(pages)
                        continue
                try:
                    self._store(_of(opened or (), [pages]))
                except (EnvbuilderError, OSError) as error:
                    _log.warning("chunk store: what a read waits for was not kept: %s", error)
                self._tell(0)


def _of(opened: Opened, wanted: Sequence[Part]) -> Opened:
    """The parts of a frame that have pages of ``wanted``, whatever their group."""
    return [(part, pages) for part, pages in opened if any(_meet(part, other) for other in wanted)]


def _meet(one: Part, other: Part) -> bool:
    together = one.first < other.first + other.count and other.first < one.first + one.count
    return one.device == other.device and together
