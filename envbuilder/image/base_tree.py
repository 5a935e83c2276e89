"""The files of several layers as one tree that can be read without unpacking it."""

from __future__ import annotations

from collections.abc import Sequence

from envbuilder.image.inspect import fetch_index
from envbuilder.layer.chunks import ChunkIndex
from envbuilder.layer.frames import read_chunk
from envbuilder.layer.merge import Merged, Node, merge
from envbuilder.layer.model import Layer
from envbuilder.layer.tree import Placed
from envbuilder.store.target import RangeTarget

#: Symbolic links followed on one way (Linux MAXSYMLINKS).
_MAX_LINKS = 40


class BaseTree:
    """``layers`` laid over each other, lowest first; their blobs are in ``store``."""

    def __init__(self, layers: Sequence[Layer], store: RangeTarget) -> None:
        self._layers, self._store = layers, store
        self.merged: Merged = merge([[each for each in layer.placed if each.path] for layer in layers])
        self._indexes: dict[int, ChunkIndex] = {}

    def find(self, path: str) -> tuple[str, Node] | None:
        """What is at ``path``, and its path without links; links are followed inside the tree."""
        stack, parts = [self.merged.root], [part for part in reversed(path.split("/")) if part]
        names: list[str] = []
        links = 0
        while parts:
            part = parts.pop()
            if part == ".":
                continue
            if part == "..":
                stack, names = stack[:-1] or stack, names[:-1]
                continue
            node = stack[-1].children.get(part)
            if node is None:
                return None
            if node.placed.mode & 0o170000 != 0o120000:
                stack.append(node)
                names.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if node.placed.link.startswith("/"):
                stack, names = stack[:1], []
            parts += [each for each in reversed(node.placed.link.split("/")) if each]
        return "/".join(names), stack[-1]

    def read(self, path: str, most: int) -> bytes | None:
        """The first ``most`` bytes of the regular file at ``path``; None if there is none.

        Raises:
            BadChunk, CorruptChunkIndex: a layer is not what it was when it was made.
        """
        found = self.find(path)
        if found is None or found[1].placed.mode & 0o170000 != 0o100000:
            return None
        node = found[1]
        return self._bytes(node.layer, node.placed, min(node.placed.size, most))

    def _bytes(self, number: int, placed: Placed, size: int) -> bytes:
        blob, data = self._layers[number].blob, bytearray()
        index = self._indexes.get(number)
        if index is None and size:
            index = self._indexes[number] = fetch_index(self._store, blob)
        while index is not None and len(data) < size:
            at = placed.offset + len(data)
            chunk = index.chunk_at(at)
            stored = self._store.fetch_range(blob, chunk.blob_offset, chunk.blob_size)
            plain = read_chunk(chunk, stored, source=str(blob.digest))
            data += plain[at - chunk.offset :][: size - len(data)]
        return bytes(data)
