"""One layer blob of which some chunks are here: what a read needs, and what of it is local."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import eq
from typing import Protocol, TypeAlias

from envbuilder.errors import EnvbuilderError
from envbuilder.layer.chunks import ChunkIndex
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.chunks.store import StoredBlob
from envbuilder.mount.counters import Counters
from envbuilder.mount.foreign.spans import SpanMap
from envbuilder.mount.request import Device

_log = logging.getLogger(__name__)

#: How the chunks of a blob lie in it: ours, or those of others.
AnyIndex: TypeAlias = ChunkIndex | SpanMap
#: Called with the error, or None when the bytes are local.
Done = Callable[[OSError | None], None]


class Wanting(Protocol):
    """Who gets chunks: see ``schedule.Schedule``."""

    def want(self, blob: LazyBlob, offset: int, size: int, done: Done) -> None: ...

    def go_on(self, blob: LazyBlob, chunk: int) -> None: ...


class LazyBlob:
    """One layer blob whose chunks come when they are read: a ``ServedFile``. Thread-safe.

    index: None until the chunk index is here; stored: as well, unless the size of chunks is known without it, and then
    until it is read. foreseen: whether it is known, as hot pages of it may come (``expect``).
    read: the chunks that were read, for the schedule. overflow: verified chunks that the store had no room for.
    read_at: when it was last read, on the monotonic clock. noted: told of every read that waits (seen/waits.py).
    """

    def __init__(self, number: int, device: Device, wanting: Wanting, counters: Counters) -> None:
        self.number, self.device, self.size = number, device, device.size
        self._wanting, self._counters = wanting, counters
        self.index: AnyIndex | None = None
        self.stored: StoredBlob | None = None
        self._chunk_size = 0
        self.foreseen = False
        self._open_stored: Callable[[], StoredBlob] | None = None
        self._opening = threading.Lock()
        self.read: set[int] = set()
        self.overflow: OrderedDict[int, bytes] = OrderedDict()
        self.read_at = 0.0
        self.noted: Callable[[int, int, int, Done], Done] | None = None

    def expect(self, chunk_size: int, open_stored: Callable[[], StoredBlob]) -> None:
        """Hot pages may come before the index is here: all chunks have ``chunk_size`` bytes.

        open_stored: called when something of it is read. To open all that a trace touches takes a start 50 ms.
        """
        self._chunk_size, self._open_stored, self.foreseen = chunk_size, open_stored, True

    def here(self) -> StoredBlob | None:
        """What of it is here, opened if hot pages may be; None: nobody knows yet, or the store refused."""
        if self.stored is None and self._open_stored is not None:
            with self._opening:
                if self.stored is None and self._open_stored is not None:
                    try:
                        self.stored = self._open_stored()
                    except (EnvbuilderError, OSError) as error:
                        _log.warning("layer %s: without its hot pages: %s", self.device.blob.digest, error)
                        self._open_stored = None
        return self.stored

    def fits(self, index: AnyIndex) -> bool:
        """Whether ``index`` is what ``prepared`` was told of."""
        return lies_evenly(index, self._chunk_size)

    def opened(self, index: AnyIndex, stored: StoredBlob) -> None:
        """The index is here: reads can be planned."""
        step = index.offsets[1]
        self._chunk_size = step if lies_evenly(index, step) else 0
        self.index = index
        self.stored = stored

    def chunks(self, offset: int, size: int) -> tuple[int, int]:
        """First and last chunk of a range of at least one byte; the index is here."""
        if step := self._chunk_size:
            return offset // step, (offset + size - 1) // step
        assert self.index is not None
        return bisect_right(self.index.offsets, offset) - 1, bisect_right(self.index.offsets, offset + size - 1) - 1

    def read_now(self, offset: int, into: memoryview) -> bool:
        """Fill ``into`` if all of it is local; see ``fuse.ServedFile``."""
        stored = self.here()
        if stored is None:
            return False
        self.read_at = time.monotonic()
        first, last = self.chunks(offset, len(into))
        if not stored.has(first, last):
            if not self._has_parts(first, last, offset, len(into)):
                return bool(self.overflow) and self._read_overflow(stored, offset, into, first, last)
            self._counters.add("hot_reads")
            last = -1
        stored.read(offset, into)
        self._counters.add("hits")
        if last >= 0 and last not in self.read:
            self._wanting.go_on(self, last)
        return True

    def has_page(self, page: int) -> bool:
        """Whether a page is here, with its chunk or singly."""
        stored = self.here()
        return stored is not None and stored.has_pages(page, page)

    def has_part(self, chunk: int, offset: int, size: int) -> bool:
        """Whether what a read of ``size`` bytes at ``offset`` needs of ``chunk`` is here, the whole or its pages."""
        stored, step = self.here(), self._chunk_size
        if stored is None:
            return False
        if stored.has(chunk, chunk):
            return True
        if stored.pages is None or not step:
            return False
        first = max(offset, chunk * step) // PAGE_SIZE
        last = (min(offset + size, (chunk + 1) * step) - 1) // PAGE_SIZE
        return stored.pages.has(first, last)

    def _has_parts(self, first: int, last: int, offset: int, size: int) -> bool:
        return all(self.has_part(chunk, offset, size) for chunk in range(first, last + 1))

    def _read_overflow(self, stored: StoredBlob, offset: int, into: memoryview, first: int, last: int) -> bool:
        assert self.index is not None
        end = offset + len(into)
        for number in range(first, last + 1):
            start, stop = max(offset, self.index.offsets[number]), min(end, self.index.offsets[number + 1])
            part = into[start - offset : stop - offset]
            if stored.has(number, number):
                stored.read(start, part)
            elif (data := self.overflow.get(number)) is not None:
                part[:] = data[start - self.index.offsets[number] :][: len(part)]
            else:
                return False
        return True

    def when_ready(self, offset: int, size: int, done: Done) -> None:
        """See ``fuse.ServedFile``."""
        if self.noted is not None:
            done = self.noted(self.number, offset, size, done)
        self._wanting.want(self, offset, size, done)


def lies_evenly(index: AnyIndex, size: int) -> bool:
    """Whether every chunk has ``size`` bytes, the last one at most.

    Layers of others may have a larger last one, which would be taken for chunks that there are not.
    """
    places = range(0, index.size, size)
    return len(places) == len(index) and all(map(eq, places, index.offsets))
