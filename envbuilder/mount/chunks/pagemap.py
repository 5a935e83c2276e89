"""Which single pages of a blob are here, of chunks that are not: eight bytes a group (layer/pages.py), a bit a page.

A hot bundle brings pages of many chunks. They lie in ``data`` where they belong; this map says so, in the boot
that wrote it, as ``present`` does for chunks. Two processes that add pages of one group in the same moment may lose
a bit, which costs a fetch and no more.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from envbuilder.layer.pages import GROUP_PAGES, PAGE_SIZE

#: Bytes of a word: a bit for each page of a group.
_WORD = GROUP_PAGES // 8


class PageMap:
    """The map in ``file``, for ``size`` bytes; made when it is not there. Thread-safe for readers."""

    def __init__(self, file: Path, size: int) -> None:
        """Raises OSError: it cannot be written."""
        length = -(-size // (GROUP_PAGES * PAGE_SIZE)) * _WORD
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(opened).st_size != length:
                # Written, not a hole: a full disk must be an error here, not a SIGBUS later.
                os.ftruncate(opened, 0)
                os.pwrite(opened, bytes(length), 0)
            self._map = mmap.mmap(opened, length)
        finally:
            os.close(opened)
        self._words = memoryview(self._map).cast("Q")

    def has(self, first: int, last: int) -> bool:
        """Whether pages ``first`` to ``last``, both included, are here."""
        return all(self._words[group] & need == need for group, need in _bits(first, last))

    def add(self, first: int, count: int) -> None:
        """Pages are in ``data``, ``count`` from ``first`` on."""
        for group, bits in _bits(first, first + count - 1):
            self._words[group] |= bits

    def close(self) -> None:
        """Let go of the map."""
        self._words.release()
        self._map.close()


def _bits(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The groups of pages ``first`` to ``last``, and of each the bits of those."""
    for group in range(first // GROUP_PAGES, last // GROUP_PAGES + 1):
        start = group * GROUP_PAGES
        yield group, (1 << min(last - start, GROUP_PAGES - 1) + 1) - (1 << max(first - start, 0))
