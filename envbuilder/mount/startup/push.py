"""What a bundle brought, put into the kernel's cache before anybody reads it.

A page that the kernel has costs no READ, and what it has not asked for it does not read ahead of: so a start reads what
was recorded and nothing beside it, which would be fetched on its own, a round trip at a time (decisions/0007).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from envbuilder.errors import EnvbuilderError
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.counters import Counters
from envbuilder.mount.host import fuse
from envbuilder.mount.startup.hot import FramePlan, Opened, Part

_log = logging.getLogger(__name__)

#: Pages that are handed over at a time: 1 MiB.
_MOST_PAGES = 256
#: Seconds between two looks at whether the kernel knows the file by now, and how long that may take: it learns of a
#: device when EROFS opens it.
_LOOK_S, _KNOWN_WITHIN_S = 0.002, 10.0


class Readable(Protocol):
    """The pages of one device that are here (``StoredBlob``)."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, into: memoryview) -> None: ...


class Pusher:
    """A thread that puts the pages of frames into the cache of the FUSE file system behind ``device``, a descriptor.

    A thread of a process that nothing else depends on: the kernel lets it wait while one of these pages is being read.
    pushed: told, by that thread, of every frame that the kernel has. is_over: it takes none.
    """

    def __init__(
        self,
        device: int,
        plans: Sequence[FramePlan],
        blobs: Mapping[int, Readable],
        counters: Counters,
        pushed: Callable[[int], None] = lambda _number: None,
    ) -> None:
        self._device, self._plans, self._blobs, self._counters = device, plans, blobs, counters
        self._pushed, self.is_over = pushed, False
        self._come: queue.SimpleQueue[tuple[int, Opened] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self._thread.start()

    def push(self, number: int, opened: Opened = ()) -> None:
        """Put frame ``number`` there, behind those before; ``opened``: its pages, if they are not in the store."""
        self._come.put((number, opened))

    def finish(self) -> None:
        """Wait until all has been put there, or cannot be."""
        self._come.put(None)
        self._thread.join()

    def _work(self) -> None:
        until = time.monotonic() + _KNOWN_WITHIN_S
        try:
            while (come := self._come.get()) is not None:
                number, opened = come
                for neighbours in joined(opened or self._stored(self._plans[number])):
                    self._push(neighbours, until)
                self._pushed(number)
        except (EnvbuilderError, OSError) as error:
            # Unmounted, or a kernel that takes none: then it asks.
            _log.debug("the kernel takes no pages: %s", error)
        finally:
            self.is_over = True

    def _stored(self, plan: FramePlan) -> Iterator[tuple[Part, memoryview]]:
        for part in plan.given:
            blob, offset = self._blobs[part.device], part.first * PAGE_SIZE
            data = memoryview(bytearray(min(part.count * PAGE_SIZE, blob.size - offset)))
            blob.read(offset, data)
            yield part, data

    def _push(self, neighbours: Sequence[tuple[Part, memoryview]], until: float) -> None:
        (first, _), data = neighbours[0], [pages for _, pages in neighbours]
        while not fuse.push(self._device, first.device, first.first * PAGE_SIZE, data):
            if time.monotonic() > until:
                raise FileNotFoundError(f"device {first.device} was never opened")
            time.sleep(_LOOK_S)
        self._counters.add("pushed_pages", sum(part.count for part, _ in neighbours))


def joined(opened: Iterable[tuple[Part, memoryview]]) -> Iterator[list[tuple[Part, memoryview]]]:
    """The pages of a frame in its order, neighbours together."""
    found: list[tuple[Part, memoryview]] = []
    pages, behind = 0, (-1, 0)
    for part, data in opened:
        if found and ((part.device, part.first) != behind or pages + part.count > _MOST_PAGES):
            yield found
            found, pages = [], 0
        found.append((part, data))
        pages, behind = pages + part.count, (part.device, part.first + part.count)
    if found:
        yield found
