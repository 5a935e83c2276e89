"""What a stream of hot pages will bring, and the reads that wait for it instead of asking themselves. No I/O.

Threading: under the schedule's lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.fetch.lazyblob import Done, LazyBlob
from envbuilder.mount.startup.trace import Frame, Pages

#: What a read waits for its page of the stream at the most, by the rate so far, else it asks itself: which costs some
#: answers of the source, and bytes of the line beside the stream. The kernel reads ahead, so that often one page of
#: many comes late and none is needed: with a second for all, ``import torch`` lost 0.9 s in four reads of 13,000.
_PATIENCE_S, _PATIENCE_BYTES = 0.2, 1 << 20
#: Bytes that are waited for until the rate is known, which is ``_SEEN_S`` after the first frame: how long that took is
#: the source's distance, and nothing of the line's rate.
_FIRST_REACH, _SEEN_S = 16 << 20, 0.05

#: Bytes a second that are reckoned with at least: one frame is always waited for.
_LEAST_RATE = 512 << 10


#: Told which pages a read waits for: frame, device, first page, count.
Asking = Callable[[int, int, int, int], None]


@dataclass(slots=True, eq=False)
class Parked:
    """A read that waits for ``frame``, the last of several: what the schedule needs to plan it after all."""

    blob: LazyBlob
    offset: int
    size: int
    done: Done
    deadline: float
    frame: int

    def is_here(self) -> bool:
        """Whether all of its pages are in the store."""
        return all(map(self.blob.has_page, _pages(self.offset, self.size)))


def _pages(offset: int, size: int) -> range:
    return range(offset // PAGE_SIZE, (offset + size - 1) // PAGE_SIZE + 1)


def _first(part: tuple[int, int, int]) -> int:
    return part[0]


class Promised:
    """The pages of a hot bundle's frames. ``now``: on the monotonic clock.

    A frame that has gone by is in the kernel's cache; in the store is what a read waits for, which must be ``asked``.
    """

    def __init__(self, ranges: Sequence[Pages], frames: Sequence[Frame], asked: Asking) -> None:
        """ranges, frames: of the trace."""
        self._asked = asked
        found: dict[int, list[tuple[int, int, int]]] = {}
        at = 0
        for device, first, count in ranges:
            found.setdefault(device, []).append((first, first + count, at))
            at += count
        #: By device its ranges in the order of their pages: first, end, pages of the trace before it.
        self._ranges = {device: sorted(parts) for device, parts in found.items()}
        self._page_ends = list(accumulate(frame.pages for frame in frames))
        self._ends = list(accumulate((frame.size for frame in frames), initial=0))
        self._first, self._first_at, self._done = 0, 0.0, 0
        self._ended = self._stalled = False
        self._parked: list[Parked] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self._ended

    @property
    def parked(self) -> int:
        """Reads that wait."""
        return len(self._parked)

    def park(self, blob: LazyBlob, offset: int, size: int, done: Done, now: float, deadline: float) -> bool:
        """Take over a read of pages of which some are not here, if the stream brings them soon."""
        if self._ended or self._stalled:
            return False
        pages, wanted = _pages(offset, size), set()
        for page in pages:
            if (frame := self._frame(blob.number, page)) >= self._done:
                wanted.add(frame)
            elif not blob.has_page(page):
                return False
        last = max(wanted, default=-1)
        if last < 0 or self._ends[last + 1] - self._ends[self._done] > self._reach(now):
            return False
        self._parked.append(Parked(blob, offset, size, done, deadline, last))
        for frame in wanted:
            self._asked(frame, blob.number, pages.start, len(pages))
        return True

    def _frame(self, device: int, page: int) -> int:
        """Which frame brings a page; -1: none."""
        ranges = self._ranges.get(device, [])
        first, end, before = ranges[at - 1] if (at := bisect_right(ranges, page, key=_first)) else (0, 0, 0)
        return bisect_right(self._page_ends, before + page - first) if page < end else -1

    def _reach(self, now: float) -> float:
        """Bytes of the stream that come within a reader's patience."""
        since_s = now - self._first_at
        if self._first == 0 or since_s < _SEEN_S:
            return _FIRST_REACH
        rate = (self._ends[self._done] - self._ends[self._first]) / since_s
        return max(rate, _LEAST_RATE) * _PATIENCE_S + _PATIENCE_BYTES

    def arrived(self, frames: int, now: float) -> list[Parked]:
        """The first ``frames`` frames have gone by, or more is in the store: the reads that need not wait any more."""
        if self._first == 0:
            self._first, self._first_at = frames, now
        self._stalled = False
        self._done = max(self._done, frames)
        ready = [parked for parked in self._parked if parked.frame < self._done or parked.is_here()]
        self._parked = [parked for parked in self._parked if parked not in ready]
        return ready

    def release(self, *, ended: bool) -> list[Parked]:
        """All reads that wait: the stream stalls, and none will until it goes on; or it ``ended``, and none ever."""
        self._ended, self._stalled = self._ended or ended, True
        parked, self._parked = self._parked, []
        return parked
