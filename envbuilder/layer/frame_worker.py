"""A chunk becomes a frame: what compresses and hashes it, here or in a process beside the one that makes the chunks.

Such a process shares memory with its caller, whose slots hold a chunk each and behind it room for its frame. It
takes which slot to work at from one pipe, several processes from the same, and tells on another what came of it.
A thread would do for zstd; but the pages of a chunk are 64 calls that give up the interpreter's lock and wait for it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from dataclasses import dataclass

import zstandard

from envbuilder.layer import pages

#: Slot, bytes of its chunk. A write of this size to a pipe is one read of this size, whoever reads (pipe(7)).
TASK = struct.Struct("<II")
#: Slot, bytes of its nodes, of its frame, checksum.
ANSWER = struct.Struct("<III32s")


@dataclass(frozen=True, slots=True)
class Frame:
    """A chunk as it is stored; its checksum, and the nodes over its pages."""

    data: bytes | memoryview
    checksum: bytes
    nodes: bytes | memoryview


class Framer:
    """Compresses chunks at ``level``, one at a time."""

    def __init__(self, level: int) -> None:
        # No frame checksum: the chunk index has the SHA-256 of every frame, the manifest that of the blob.
        self._compressor = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True)

    def frame(self, chunk: memoryview) -> Frame:
        data = self._compressor.compress(chunk)
        return Frame(data, hashlib.sha256(data).digest(), pages.nodes(chunk))


def slot_size(chunk_size: int) -> int:
    """Bytes of a slot: a chunk, its nodes, and the most that zstd makes of it (ZSTD_COMPRESSBOUND), in whole pages."""
    most = chunk_size + nodes_size(chunk_size) + chunk_size + (chunk_size >> 8) + 64
    return -(-most // mmap.PAGESIZE) * mmap.PAGESIZE


def nodes_size(chunk_size: int) -> int:
    """Bytes of the nodes of a chunk."""
    return -(-chunk_size // pages.GROUP_SIZE) * pages.HASH_SIZE


def serve(memory: int, tasks: int, answers: int, chunk_size: int, level: int) -> None:
    """Work until nobody can ask any more: the caller closed its end of ``tasks``, or is gone."""
    framer, step = Framer(level), slot_size(chunk_size)
    shared = memoryview(mmap.mmap(memory, 0))
    while task := os.read(tasks, TASK.size):
        slot, size = TASK.unpack(task)
        chunk = shared[slot * step : slot * step + size]
        frame = framer.frame(chunk)
        start = slot * step + chunk_size
        middle = start + len(frame.nodes)
        shared[start:middle] = frame.nodes
        shared[middle : middle + len(frame.data)] = frame.data
        try:
            os.write(answers, ANSWER.pack(slot, len(frame.nodes), len(frame.data), frame.checksum))
        except BrokenPipeError:
            return
