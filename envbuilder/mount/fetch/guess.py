"""What a read is worth fetching besides: guessed from what was read near it. Pure.

Programs go through libraries upwards (relocations, symbols) and downwards (constructors run in reverse order), mostly
with gaps, several such runs at a time. What was read within a few chunks says which way a run goes and how long it is:
no run needs to be remembered. How much a guess may be, ``most`` chunks, is the link's matter (``Link.worth``).
docs/decisions/0002-reads-ahead.md has the numbers.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

#: Chunks to each side that are looked at, and how near the last one must be for a run.
_LOOK, _GAP = 12, 4
#: Chunks fetched for each one of a run that was read: a quarter of a guess at least, and what a long run is sure of at
#: the most (4 MiB).
_GROWTH, _LONG = 2, 16
#: Chunks behind one where runs of both directions meet. Where a trace says what is read what it does not foresee is
#: rare, and has few neighbours that are.
_BETWEEN, _TRACED = 4, 1
_NOTHING = range(0)


def run_from(chunk: int, read: AbstractSet[int], count: int, *, most: int) -> range:
    """Where a run of reads goes on that has come to ``chunk`` of ``count``; empty when there is none.

    most: chunks that a guess may be; a long run is none.
    """
    below, above = _near(chunk, -1, read), _near(chunk, 1, read)
    up, down = bool(below) and below[0] <= _GAP, bool(above) and above[0] <= _GAP
    if up and down:
        up, down = len(below) > 2 * len(above), len(above) > 2 * len(below)
    if up:
        return range(chunk + 1, min(chunk + _reach(below, most), count - 1) + 1)
    if down:
        return range(max(chunk - _reach(above, most), 0), chunk)
    return _NOTHING


def behind(chunk: int, read: AbstractSet[int], count: int, *, most: int, traced: bool) -> range:
    """What comes with a missing ``chunk`` in one request, behind it, so that it comes first itself."""
    run = run_from(chunk, read, count, most=most)
    if run:
        return run if run.start > chunk else _NOTHING
    between = min(_near(chunk, 1, read), default=_LOOK) <= _GAP
    size = min(_TRACED if traced else _BETWEEN if between else most, most - 1)
    return range(chunk + 1, min(chunk + size, count - 1) + 1)


def _near(chunk: int, step: int, read: AbstractSet[int]) -> list[int]:
    return [distance for distance in range(1, _LOOK + 1) if chunk + step * distance in read]


def _reach(found: list[int], most: int) -> int:
    return max(most // 4, min(max(most, _LONG), _GROWTH * len(found)))
