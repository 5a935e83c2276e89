"""Jobs that no reader waits for: what a trace foresees, and the rest of an image. Under the schedule's lock.

Both are made one by one, when a connection has nothing better to do, so that each looks at what is here by then.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

from envbuilder.layer.pages import GROUP_SIZE
from envbuilder.mount.fetch.jobs import AHEAD, BACKGROUND, Job, runs
from envbuilder.mount.fetch.lazyblob import LazyBlob

#: Groups of pages of a trace that are looked at together for neighbours: fewer requests, and little out of order.
_WINDOW = 256
#: Compressed bytes of one background request (lazy_start.md 4: coalesced 4-8 MiB ranges).
_BACKGROUND_RANGE = 4 << 20

#: Bytes, unpacked, that one process gets in one piece where several pull an image: some requests.
_STRETCH = 16 << 20
#: Number of a process, and of how many.
Share = tuple[int, int]
WHOLE: Share = (0, 1)
NOTHING: Share = (1, 1)

#: What is on its way: (blob, chunk) -> its job.
Flights = MutableMapping[tuple[int, int], Job]


def foreseen(groups: Sequence[tuple[int, int]], blobs: Sequence[LazyBlob], flights: Flights) -> Iterator[Job]:
    """Jobs for groups of pages, (blob, group), in about this order; neighbours within a window are joined.

    A trace does not know how a layer is cut.
    """
    left = list(groups)
    while left:
        window = [each for each in left if blobs[each[0]].index is not None][:_WINDOW]
        if not window:
            return  # their indexes cannot be had, or reads fetch them now
        taken = set(window)
        left = [each for each in left if each not in taken]
        for number in dict.fromkeys(number for number, _ in window):
            blob = blobs[number]
            assert blob.index is not None
            assert blob.stored is not None
            wanted = sorted({chunk for each, group in window if each == number for chunk in _chunks_of(blob, group)})
            missing = [
                chunk for chunk in wanted if (number, chunk) not in flights and not blob.stored.has(chunk, chunk)
            ]
            for first, last in runs(missing):
                yield _started(Job(blob, first, last, AHEAD), flights)


def _chunks_of(blob: LazyBlob, group: int) -> range:
    """The chunks of ``blob`` that have pages of ``group``."""
    start = group * GROUP_SIZE
    if start >= blob.size:
        return range(0)
    first, last = blob.chunks(start, min(GROUP_SIZE, blob.size - start))
    return range(first, last + 1)


def rest_of(blob: LazyBlob, flights: Flights, share: Share = WHOLE) -> Iterator[Job]:
    """Jobs for all that is missing of a blob whose index is here, or for one share of it."""
    assert blob.index is not None
    assert blob.stored is not None
    number, of = share
    step = max(_STRETCH * len(blob.index) // blob.index.size, 1)
    for stretch in range(0, len(blob.index), step):
        if (stretch // step + blob.number) % of == number:
            yield from _rest_of_stretch(blob, flights, stretch, min(stretch + step, len(blob.index)))


def _rest_of_stretch(blob: LazyBlob, flights: Flights, chunk: int, end: int) -> Iterator[Job]:
    assert blob.index is not None
    assert blob.stored is not None
    while chunk < end:
        first = next(blob.stored.missing(chunk, end - 1), end)
        chunk = first + 1
        if first == end or (blob.number, first) in flights:
            continue
        while (
            chunk < end
            and (blob.number, chunk) not in flights
            and not blob.stored.has(chunk, chunk)
            and blob.index.blob_offsets[chunk + 1] - blob.index.blob_offsets[first] <= _BACKGROUND_RANGE
        ):
            chunk += 1
        yield _started(Job(blob, first, chunk - 1, BACKGROUND), flights)


def in_order_of_use(blobs: Sequence[LazyBlob]) -> list[LazyBlob]:
    """Those that were read first, the latest before: a library that is mapped shall soon need no registry."""
    return sorted(blobs, key=lambda blob: -blob.read_at)


def _started(job: Job, flights: Flights) -> Job:
    job.started = True
    for number in range(job.first, job.last + 1):
        flights[job.blob.number, number] = job
    return job
