"""Which ranges of a blob a read makes worth fetching: itself, what comes with it, what it will come to (guess.py).

Under the schedule's lock; no I/O.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from envbuilder.mount.fetch.guess import Cut, behind, run_from
from envbuilder.mount.fetch.jobs import runs
from envbuilder.mount.fetch.lazyblob import LazyBlob

#: What is on its way: (blob, chunk).
Flights = Container[tuple[int, int]]
#: Bytes of a guess at the most, unpacked, however few they are as stored.
_MOST = 8 << 20


def together_with(
    blob: LazyBlob, missing: Sequence[int], flights: Flights, *, worth: int, traced: bool
) -> Iterator[tuple[int, int]]:
    """First and last chunk of each range for ``missing``: every one with what is likely to be read behind it.

    worth: bytes, as stored, that a guess may have.
    """
    wanted = set(missing)
    cut = _cut(blob, worth)
    for chunk in missing:
        following = _unasked(blob, behind(chunk, blob.read, cut, traced=traced), flights)
        wanted.update(number for place, number in enumerate(following, chunk + 1) if place == number)
    return runs(sorted(wanted))


def ahead_of(blob: LazyBlob, chunk: int, flights: Flights, *, worth: int, overtaken: bool) -> Iterator[tuple[int, int]]:
    """The same for what a run of reads that has come to ``chunk`` will come to, once half of that is missing.

    overtaken: that chunk was not even asked for, so that all of it is fetched.
    """
    run = run_from(chunk, blob.read, _cut(blob, worth))
    unasked = _unasked(blob, run, flights)
    return runs(unasked if overtaken or 2 * len(unasked) > len(run) else ())


def _cut(blob: LazyBlob, worth: int) -> Cut:
    """A guess may be as many chunks as have ``worth`` bytes on average, rounded up: of large chunks one is much."""
    index = blob.index
    assert index is not None
    count = len(index)
    size = index.size // count
    most = min(-(-worth * count // max(index.blob_offsets[-1], 1)), _MOST // size)
    return Cut(count=count, size=size, most=max(most, 1))


def _unasked(blob: LazyBlob, chunks: range, flights: Flights) -> list[int]:
    """Those of ``chunks`` that are neither here nor on their way."""
    assert blob.stored is not None
    missing = blob.stored.missing(chunks.start, chunks.stop - 1) if chunks else ()
    return [chunk for chunk in missing if (blob.number, chunk) not in flights]
