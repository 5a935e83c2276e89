"""Which single pages of a blob are here, of chunks that are not: eight bytes a chunk, a bit a page.

A hot bundle brings pages of many chunks. They lie in ``data`` where they belong; this map says so, in the boot
that wrote it, as ``present`` does for chunks. Two processes that add pages of one chunk in the same moment may lose
a bit, which costs a fetch and no more.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

#: Pages of a chunk that a word can tell of: 256 KiB of 4 KiB pages (layer/frames.py CHUNK_SIZE).
CHUNK_PAGES = 64
_ALL = (1 << CHUNK_PAGES) - 1
_WORD = 8


class PageMap:
    """The map in ``file``, for ``chunks`` chunks; made when it is not there. Thread-safe for readers."""

    def __init__(self, file: Path, chunks: int) -> None:
        """Raises OSError: it cannot be written."""
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(opened).st_size
            if size != chunks * _WORD:
                # Written, not a hole: a full disk must be an error here, not a SIGBUS later.
                os.ftruncate(opened, 0)
                os.pwrite(opened, bytes(chunks * _WORD), 0)
            self._map = mmap.mmap(opened, chunks * _WORD)
        finally:
            os.close(opened)
        self._words = memoryview(self._map).cast("Q")

    def has(self, chunk: int, first: int, last: int) -> bool:
        """Whether pages ``first`` to ``last`` of ``chunk``, both included, are here."""
        need = (1 << last + 1) - (1 << first)
        return self._words[chunk] & need == need

    def add(self, chunk: int, first: int, count: int) -> None:
        """Pages of ``chunk`` are in ``data``, ``count`` from ``first`` on."""
        self._words[chunk] |= ((1 << count) - 1) << first & _ALL

    def close(self) -> None:
        """Let go of the map."""
        self._words.release()
        self._map.close()
