"""What the schedule hands out and what waits for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envbuilder.mount.fetch.lazyblob import Done, LazyBlob

FOREGROUND, AHEAD, BACKGROUND = 0, 1, 2
#: "First chunk" of the job that gets a blob's chunk index.
INDEX = -1
#: A time after every deadline.
FOR_GOOD = float("inf")


@dataclass(slots=True, eq=False)
class Waiter:
    """A read that waits for ``missing`` chunks until ``deadline``, on the monotonic clock."""

    done: Done
    deadline: float
    missing: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One ranged read: chunks ``first`` to ``last`` of a blob, both included, or its ``INDEX``."""

    blob: LazyBlob
    first: int
    last: int
    priority: int
    started: bool = False
    waiters: dict[int, list[Waiter]] = field(default_factory=dict)


def runs(chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring chunks joined: (first, last) of each run."""
    first = last = -2
    for chunk in chunks:
        if chunk != last + 1:
            if first >= 0:
                yield first, last
            first = chunk
        last = chunk
    if first >= 0:
        yield first, last
