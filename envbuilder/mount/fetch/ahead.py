"""What to fetch ahead of sequential readers. Under the schedule's lock; no I/O."""

from __future__ import annotations

from envbuilder.mount.fetch.lazyblob import LazyBlob

#: Chunks that read-ahead grows to: 4 MiB of uncompressed data ahead of a sequential reader.
_MAX_AHEAD = 16
#: Sequential readers of one blob that are remembered.
_STREAMS = 32


def ahead_of(blob: LazyBlob, first: int, last: int) -> range:
    """The chunks to fetch ahead for a reader of ``first`` to ``last``: twice as many each time it enters them.

    ``blob.streams``: the chunk that goes on with a stream -> where to fetch ahead from, and how many. A chunk
    that continues no stream begins one and fetches nothing more: an import storm stays as small as
    it is. One request a region, so that requests grow with the stream.
    """
    assert blob.index is not None
    begin, window, end = 0, 0, 0
    for chunk in range(first, last + 1):
        if (found := blob.streams.pop(chunk, None)) is not None:
            begin, window = found
    if not window:
        blob.streams[last + 1] = (last + 2, 1)
    elif begin < len(blob.index):
        end = min(begin + window, len(blob.index))
        blob.streams[begin] = (end, min(window * 2, _MAX_AHEAD))
    while len(blob.streams) > _STREAMS:
        blob.streams.popitem(last=False)
    return range(begin, end)
