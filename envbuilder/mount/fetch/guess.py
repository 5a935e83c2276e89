"""What a read is worth fetching besides: guessed from what was read near it. Pure.

Programs go through libraries upwards (relocations, symbols) and downwards (constructors run in reverse order), mostly
with gaps, several such runs at a time. What was read within a few chunks says which way a run goes and how long it is:
no run needs to be remembered. How much a guess may be is the link's matter (``Link.worth``).
docs/decisions/0002-reads-ahead.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

#: Bytes, unpacked, to each side that are looked at, and how near the last chunk must be for a run.
_LOOK, _GAP = 3 << 20, 1 << 20
#: Chunks fetched for each one of a run that was read: a quarter of a guess at least; bytes that a long run is sure of
#: at the most.
_GROWTH, _LONG = 2, 4 << 20
#: Bytes behind a chunk where runs of both directions meet.
_BETWEEN = 1 << 20
_NOTHING = range(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How a layer is cut: into ``count`` chunks of about ``size`` bytes, unpacked; ``most`` of them may be a guess."""

    count: int
    size: int
    most: int

    def chunks(self, size: int) -> int:
        """How many chunks ``size`` bytes are; one at least."""
        return max(size // self.size, 1)


def run_from(chunk: int, read: AbstractSet[int], cut: Cut) -> range:
    """Where a run of reads goes on that has come to ``chunk``; empty when there is none. A long run is no guess."""
    below, above = _near(chunk, -1, read, cut), _near(chunk, 1, read, cut)
    gap = cut.chunks(_GAP)
    up, down = bool(below) and below[0] <= gap, bool(above) and above[0] <= gap
    if up and down:
        up, down = len(below) > 2 * len(above), len(above) > 2 * len(below)
    if up:
        return range(chunk + 1, min(chunk + _reach(below, cut), cut.count - 1) + 1)
    if down:
        return range(max(chunk - _reach(above, cut), 0), chunk)
    return _NOTHING


def behind(chunk: int, read: AbstractSet[int], cut: Cut, *, traced: bool) -> range:
    """What comes with a missing ``chunk`` in one request, behind it, so that it comes first itself.

    traced: a trace says what is read; what it does not foresee is rare, and has few neighbours that are read.
    """
    run = run_from(chunk, read, cut)
    if run:
        return run if run.start > chunk else _NOTHING
    between = any(distance <= cut.chunks(_GAP) for distance in _near(chunk, 1, read, cut))
    size = 0 if traced else min(cut.chunks(_BETWEEN) if between else cut.most, cut.most - 1)
    return range(chunk + 1, min(chunk + size, cut.count - 1) + 1)


def _near(chunk: int, step: int, read: AbstractSet[int], cut: Cut) -> list[int]:
    return [distance for distance in range(1, cut.chunks(_LOOK) + 1) if chunk + step * distance in read]


def _reach(found: list[int], cut: Cut) -> int:
    return max(cut.most // 4, min(max(cut.most, cut.chunks(_LONG)), _GROWTH * len(found)))
