"""A tar becomes a layer blob: one zstd frame a chunk, the chunk index behind them.

Any zstd decoder reads the whole as one tar; a lazy reader fetches and checks single frames.
Format: docs/formats/layer.md; draft EROFS image spec 640fd6a5, 3.3 and 3.4.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.layer import pages
from envbuilder.layer.chunks import Chunk, ChunkIndex, index_annotations, skippable
from envbuilder.layer.tar import Writable
from envbuilder.oci import media_types

#: Uncompressed bytes of every chunk but the last: ratio within 3 points of one frame (lazy_start.md 1.4),
#: one round trip's worth at 1 Gbit/s, 48 bytes of index each.
CHUNK_SIZE = 256 << 10
#: zstd level: 3 halves the time of gzip -6 and is 10 % smaller (build.md 6).
LEVEL = 3
#: What decides the bytes of a blob besides the tar: part of every layer's recipe.
COMPRESSOR = f"zstd/{'.'.join(map(str, zstandard.ZSTD_VERSION))} level={LEVEL} chunk={CHUNK_SIZE}"


class BadChunk(IntegrityError):
    """The bytes of a chunk are not those that the chunk index promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """A finished blob; ``tar_size`` is in bytes, uncompressed.

    blob: annotated with where its chunk index is and with the root over its pages.
    """

    blob: Descriptor
    diff_id: Digest
    tar_size: int
    index: ChunkIndex


@runtime_checkable
class Hashing(Writable, Protocol):
    """A Writable that hashes what it is given, as a store's BlobWriter does: nobody need hash that again."""

    @property
    def digest(self) -> Digest:
        """Of all that was written so far."""


class FrameWriter:
    """Takes an uncompressed stream and writes the blob to ``out``; memory is two chunks, and two more a helper.

    ``finish`` ends the blob and must be called once; ``close`` in its place gives up. A context manager. Not
    thread-safe. helpers: threads that compress and hash chunks while the caller makes the next; the bytes are the
    same. With none all is done in the caller's thread: parallel layers use the cores without hand-overs.
    """

    def __init__(self, out: Writable, *, media_type: str = media_types.OCI_LAYER_TAR_ZSTD, helpers: int = 0) -> None:
        self._out = out if isinstance(out, Hashing) else _Hashed(out)
        self._media_type = media_type
        self._helpers = ThreadPoolExecutor(helpers, "frames") if helpers else None
        self._ahead = 2 * helpers
        self._free = [_Desk() for _ in range(self._ahead + 1)]
        self._desk = self._free.pop()
        self._filled = 0
        self._running: deque[tuple[_Desk, int, Future[_Frame]]] = deque()
        self._diff_id = hashlib.sha256()
        self._offsets, self._blob_offsets, self._checksums = [0], [0], bytearray()
        self._nodes = bytearray()

    def write(self, data: bytes, /) -> int:
        """Take the next bytes of the stream, all of them."""
        view = memoryview(data)
        size, taken = len(view), 0
        while taken < size:
            part = min(size - taken, CHUNK_SIZE - self._filled)
            self._desk.chunk[self._filled : self._filled + part] = view[taken : taken + part]
            self._filled += part
            taken += part
            if self._filled == CHUNK_SIZE:
                self._end_chunk()
        return size

    def finish(self) -> Framed:
        """End the last chunk, write the chunk index behind it, and say what the blob is."""
        if self._filled:
            self._end_chunk()
        while self._running:
            self._take_oldest()
        self.close()
        index = ChunkIndex(
            offsets=tuple(self._offsets), blob_offsets=tuple(self._blob_offsets), checksums=bytes(self._checksums)
        )
        payload, start = index.dump(), self._blob_offsets[-1]
        frame = skippable(payload)
        self._out.write(frame)
        blob = Descriptor(
            media_type=self._media_type,
            digest=self._out.digest,
            size=start + len(frame),
            annotations={
                **index_annotations(payload, start=start),
                media_types.LAYER_PAGES: str(pages.root(self._nodes)),
            },
        )
        diff_id = Digest("sha256:" + self._diff_id.hexdigest())
        return Framed(blob=blob, diff_id=diff_id, tar_size=self._offsets[-1], index=index)

    def close(self) -> None:
        """End the helpers; a no-op after ``finish``."""
        if self._helpers is not None:
            self._helpers.shutdown(cancel_futures=True)

    def __enter__(self) -> FrameWriter:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_chunk(self) -> None:
        desk, size, self._filled = self._desk, self._filled, 0
        if self._helpers is None:
            self._diff_id.update(desk.chunk[:size])
            self._append(size, desk.frame(size))
            return
        self._running.append((desk, size, self._helpers.submit(desk.frame, size)))
        self._diff_id.update(desk.chunk[:size])  # the one hash that has an order: meanwhile, here
        while len(self._running) > self._ahead or (self._running and self._running[0][2].done()):
            self._take_oldest()
        self._desk = self._free.pop()

    def _take_oldest(self) -> None:
        desk, size, future = self._running.popleft()
        self._append(size, future.result())
        self._free.append(desk)

    def _append(self, size: int, frame: _Frame) -> None:
        self._nodes += frame.node
        self._checksums += frame.checksum
        self._offsets.append(self._offsets[-1] + size)
        self._blob_offsets.append(self._blob_offsets[-1] + len(frame.data))
        self._out.write(frame.data)


@dataclass(frozen=True, slots=True)
class _Frame:
    """A chunk as it is stored; its checksum, and the node over its pages."""

    data: bytes
    checksum: bytes
    node: bytes


class _Desk:
    """Room for one chunk, and what compresses it; one thread works at it at a time."""

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(CHUNK_SIZE))
        # No frame checksum: the chunk index has the SHA-256 of every frame, the manifest that of the blob.
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False, write_content_size=True)

    def frame(self, size: int) -> _Frame:
        """The first ``size`` bytes of the chunk as a frame."""
        chunk = self.chunk[:size]
        data = self._compressor.compress(chunk)
        return _Frame(data, hashlib.sha256(data).digest(), pages.node(pages.leaves(chunk)))


class _Hashed:
    """A Hashing over any Writable."""

    def __init__(self, out: Writable) -> None:
        self._out, self._hash = out, hashlib.sha256()

    @property
    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())

    def write(self, data: bytes, /) -> None:
        self._hash.update(data)
        self._out.write(data)


def read_chunk(chunk: Chunk, stored: bytes, *, source: str) -> bytes:
    """The uncompressed bytes of ``chunk``, from its bytes in the blob; checked before anything parses them.

    Raises:
        BadChunk: another size or SHA-256 than the index says, or not one frame of ``chunk.size`` bytes.
    """
    if len(stored) != chunk.blob_size or hashlib.sha256(stored).digest() != chunk.sha256:
        raise BadChunk(
            f"{source}: chunk {chunk.number}: want sha256:{chunk.sha256.hex()} ({chunk.blob_size} bytes), "
            f"got sha256:{hashlib.sha256(stored).hexdigest()} ({len(stored)} bytes)",
            hint="Fetch it again; if it stays wrong, the source is corrupt or hostile.",
        )
    try:
        if zstandard.get_frame_parameters(stored).content_size != chunk.size:
            raise BadChunk(f"{source}: chunk {chunk.number}: its frame does not hold {chunk.size} bytes")
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=chunk.size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadChunk(f"{source}: chunk {chunk.number}: {error}") from error
    return data
