"""What a bundle brought, put into the kernel's cache before anybody reads it.

A page that the kernel has costs no READ, and what it has not asked for it does not read ahead of: so a start reads what
was recorded and nothing beside it, which would be fetched on its own, a round trip at a time (decisions/0007).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from envbuilder.errors import EnvbuilderError
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.counters import Counters
from envbuilder.mount.host import fuse
from envbuilder.mount.startup.hot import FramePlan
from envbuilder.mount.startup.trace import Pages

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
    """

    def __init__(
        self, device: int, plans: Sequence[FramePlan], blobs: Mapping[int, Readable], counters: Counters
    ) -> None:
        self._device, self._plans, self._blobs, self._counters = device, plans, blobs, counters
        self._come: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="push", daemon=True)
        self._thread.start()

    def arrived(self, frames: int) -> None:
        """The first ``frames`` frames are in the store."""
        self._come.put(frames)

    def finish(self) -> None:
        """Wait until all that arrived has been put there, or cannot be."""
        self._come.put(None)
        self._thread.join()

    def _work(self) -> None:
        done = 0
        until = time.monotonic() + _KNOWN_WITHIN_S
        try:
            while (frames := self._come.get()) is not None:
                for plan in self._plans[done:frames]:
                    for pages in joined(plan):
                        self._push(pages, until)
                done = frames
        except (EnvbuilderError, OSError) as error:
            # Unmounted, or a kernel that takes none: then it asks.
            _log.debug("the kernel takes no pages: %s", error)

    def _push(self, pages: Pages, until: float) -> None:
        blob, offset = self._blobs[pages.device], pages.first * PAGE_SIZE
        data = bytearray(min(pages.count * PAGE_SIZE, blob.size - offset))
        blob.read(offset, memoryview(data))
        while not fuse.push(self._device, pages.device, offset, data):
            if time.monotonic() > until:
                raise FileNotFoundError(f"device {pages.device} was never opened")
            time.sleep(_LOOK_S)
        self._counters.add("pushed_pages", pages.count)


def joined(plan: FramePlan) -> Iterator[Pages]:
    """The pages of a frame in its order, neighbours together."""
    last: Pages | None = None
    for part in plan.parts:
        if (
            last
            and (last.device, last.first + last.count) == (part.device, part.first)
            and last.count + part.count <= _MOST_PAGES
        ):
            last = last._replace(count=last.count + part.count)
            continue
        if last:
            yield last
        last = Pages(part.device, part.first, part.count)
    if last:
        yield last
