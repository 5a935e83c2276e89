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
    """A read that waits for ``missing`` chunks until ``deadline``, on an AwakeClock."""

    done: Done
    deadline: float
    missing: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One ranged read: chunks ``first`` to ``last`` of a blob, both included, or its ``INDEX``.

    given_up: nobody waits for it any more, as it took too long.
    """

    blob: LazyBlob
    first: int
    last: int
    priority: int
    started: bool = False
    given_up: bool = False
    waiters: dict[int, list[Waiter]] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """In words."""
        layer = f"layer {self.blob.device.blob.digest}"
        if self.first == INDEX:
            return f"the chunk index of {layer}"
        return f"{layer}, chunk {self.first}" + (f" to {self.last}" if self.last > self.first else "")


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


def overdue(job: Job, now: float) -> list[Done]:
    """Of the reads that wait for ``job`` those whose limit has passed at ``now``; they no longer do."""
    failed: list[Done] = []
    for chunk, waiters in list(job.waiters.items()):
        for waiter in waiters:
            if waiter.deadline <= now and waiter.missing > 0:
                failed.append(waiter.done)
                waiter.missing = -1  # other chunks of it that come later must not answer again
        job.waiters[chunk] = [waiter for waiter in waiters if waiter.missing > 0]
    return failed
