"""Spool: file data that comes once, as a stream, and must be opened again later."""

from __future__ import annotations

import io
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from envbuilder.digest import BLOCK_SIZE, Readable


class Spool:
    """One anonymous file of unpacked data: no name on disk, gone with its last reader.

    Threading: ``add`` from one thread; opened regions are read with ``pread``, from any.
    """

    def __init__(self, directory: Path | None = None) -> None:
        with tempfile.TemporaryFile(dir=directory, prefix="envbuilder-") as file:
            self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._size = 0

    def add(self, data: Readable) -> Callable[[], BinaryIO]:
        """Keep ``data`` to its end; the result opens it, as ``Entry.open`` wants."""
        offset = self._size
        while block := data.read(BLOCK_SIZE):
            view = memoryview(block)
            while view:
                written = os.pwrite(self._fd, view, self._size)
                self._size += written
                view = view[written:]
        size = self._size - offset
        return lambda: io.BufferedReader(_Region(self, offset, size))

    def fileno(self) -> int:
        """The descriptor of the anonymous file."""
        return self._fd


class _Region(io.RawIOBase):
    """``size`` bytes at ``offset`` of a spool, which it keeps alive."""

    def __init__(self, spool: Spool, offset: int, size: int) -> None:
        super().__init__()
        self._spool, self._at, self._end = spool, offset, offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")[: self._end - self._at]
        got = os.preadv(self._spool.fileno(), [view], self._at) if view else 0
        self._at += got
        return got
