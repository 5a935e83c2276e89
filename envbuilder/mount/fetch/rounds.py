"""Jobs that no reader waits for: what a trace foresees, and the rest of an image. Under the schedule's lock.

Both are made one by one, when a connection has nothing better to do, so that each looks at what is here by then.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

from envbuilder.layer.frames import CHUNK_SIZE
from envbuilder.mount.fetch.jobs import AHEAD, BACKGROUND, Job, runs
from envbuilder.mount.fetch.lazyblob import LazyBlob

#: Chunks of a trace that are looked at together for neighbours: fewer requests, and little out of order.
_WINDOW = 256
#: Compressed bytes of one background request (lazy_start.md 4: coalesced 4-8 MiB ranges).
_BACKGROUND_RANGE = 4 << 20

#: Chunks that one process gets in one piece where several pull an image: 16 MiB, some requests.
_STRETCH = 64
#: Number of a process, and of how many.
Share = tuple[int, int]
WHOLE: Share = (0, 1)
NOTHING: Share = (1, 1)

#: What is on its way: (blob, chunk) -> its job.
Flights = MutableMapping[tuple[int, int], Job]


def foreseen(chunks: Sequence[tuple[int, int]], blobs: Sequence[LazyBlob], flights: Flights) -> Iterator[Job]:
    """Jobs for ``chunks``, (blob, chunk), in about this order; neighbours within a window are joined.

    They are counted as if each had ``CHUNK_SIZE`` bytes: a trace does not know how the layers of others are cut.
    """
    left = list(chunks)
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
            wanted = sorted({real for each, chunk in window if each == number for real in _real(blob, chunk)})
            missing = [
                chunk for chunk in wanted if (number, chunk) not in flights and not blob.stored.has(chunk, chunk)
            ]
            for first, last in runs(missing):
                yield _started(Job(blob, first, last, AHEAD), flights)


def _real(blob: LazyBlob, chunk: int) -> range:
    """The chunks of ``blob`` where one of the usual size would be number ``chunk``."""
    start = chunk * CHUNK_SIZE
    if start >= blob.size:
        return range(0)
    first, last = blob.chunks(start, min(CHUNK_SIZE, blob.size - start))
    return range(first, last + 1)


def rest_of(blob: LazyBlob, flights: Flights, share: Share = WHOLE) -> Iterator[Job]:
    """Jobs for all that is missing of a blob whose index is here, or for one share of it."""
    assert blob.index is not None
    assert blob.stored is not None
    number, of = share
    for stretch in range(0, len(blob.index), _STRETCH):
        if (stretch // _STRETCH + blob.number) % of == number:
            yield from _rest_of_stretch(blob, flights, stretch, min(stretch + _STRETCH, len(blob.index)))


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
