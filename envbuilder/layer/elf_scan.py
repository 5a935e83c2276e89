"""Inspect a large ELF object while it streams past, without keeping it.

ld.so.cache needs the soname of every library, and the libraries of a GPU environment are up to
a gigabyte each. Spooling them to a file for ``mmap`` costs 1.6 CPU-seconds a gigabyte, a sixth
of the whole layer [measured, 2 cores, ext4]; a second inflate costs twice that. So the ranges
that ``inspect_elf`` reads are copied, as they pass, into an anonymous mapping of the object's
size, whose other pages are never touched and cost nothing.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import BinaryIO

from envbuilder.digest import BLOCK_SIZE
from envbuilder.layer.elf import ElfInfo, inspect_elf

#: elf.h
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SONAME = 5, 14
_EHDR_SIZE, _PHDR_SIZE, _DYN_SIZE = 64, 56, 16
#: Bytes that are kept of one range: program headers, the dynamic section and a name are far below.
_MAX_RANGE = 1 << 16
#: Bytes kept of the soname: NAME_MAX and the terminator.
_NAME_SIZE = 256
#: Times the stream may be opened again for a range that had passed when it was found to matter.
_MAX_PASSES = 3


class ElfScan:
    """Feed every block of one object in order, then ask for the ``result``."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0
        self._sparse = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        #: Ranges that are copied whole by the end of the stream.
        self._taken = [(0, min(_MAX_RANGE, size))]

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the object."""
        start = self._at
        self._at += len(block)
        self._copy(block, start, self._taken)
        if any(start < end <= self._at for _, end in self._taken):
            # A range is whole: what it names may lie in this very block, and what that names too.
            while found := [wanted for wanted in self._missing() if wanted[0] >= start]:
                self._copy(block, start, found)
                self._taken += found

    def result(self, reopen: Callable[[], BinaryIO]) -> ElfInfo | None:
        """What the object says about itself, as ``inspect_elf``; the stream is opened again if it must be.

        In the result only ``soname``, ``flags`` and the kind are known; ``needed`` may be short.
        """
        for _ in range(_MAX_PASSES):
            missing = self._missing()
            if not missing:
                break
            self._read_again(reopen, missing)
        info = inspect_elf(self._sparse)
        self._sparse.close()
        return info

    def _read_again(self, reopen: Callable[[], BinaryIO], missing: list[tuple[int, int]]) -> None:
        at, last = 0, max(end for _, end in missing)
        with reopen() as stream:
            while at < last and (block := stream.read(min(BLOCK_SIZE, last - at))):
                self._copy(block, at, missing)
                at += len(block)
        self._taken += missing

    def _copy(self, block: bytes, start: int, ranges: list[tuple[int, int]]) -> None:
        for first, last in ranges:
            low, high = max(first, start), min(last, start + len(block))
            if low < high:
                self._sparse[low:high] = block[low - start : high - start]

    def _missing(self) -> list[tuple[int, int]]:
        return [
            (start, end)
            for start, end in self._ranges()
            if start < end and not any(low <= start and end <= high for low, high in self._taken)
        ]

    def _ranges(self) -> list[tuple[int, int]]:
        """Where ``inspect_elf`` would look, as far as what is known says."""
        data = self._sparse
        if self._size < _EHDR_SIZE or data[:4] != b"\x7fELF":
            return []
        (phoff,) = struct.unpack_from("<Q", data, 32)
        (phnum,) = struct.unpack_from("<H", data, 56)
        table = self._clip(phoff, phnum * _PHDR_SIZE)
        headers = [
            struct.unpack_from("<IIQQQQ", data, table[0] + index * _PHDR_SIZE)
            for index in range((table[1] - table[0]) // _PHDR_SIZE)
        ]
        ranges = [table]
        for kind, _, at, _, _, size in headers:
            if kind != _PT_DYNAMIC:
                continue
            start, end = self._clip(at, size)
            ranges.append((start, end))
            tags = dict(struct.iter_unpack("<QQ", data[start : end - (end - start) % _DYN_SIZE]))
            if _DT_STRTAB in tags and _DT_SONAME in tags:
                # patchelf puts the segment with the strings last, behind PT_DYNAMIC.
                ranges += [
                    self._clip(offset + tags[_DT_STRTAB] - vaddr + tags[_DT_SONAME], _NAME_SIZE)
                    for load, _, offset, vaddr, _, filesz in headers
                    if load == _PT_LOAD and vaddr <= tags[_DT_STRTAB] < vaddr + filesz
                ]
        return ranges

    def _clip(self, start: int, size: int) -> tuple[int, int]:
        start = min(start, self._size)
        return start, min(start + min(size, _MAX_RANGE), self._size)
