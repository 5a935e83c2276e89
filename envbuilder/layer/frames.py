"""A tar becomes a layer blob: one zstd frame a chunk, the chunk index behind them.

Any zstd decoder reads the whole as one tar; a lazy reader fetches and checks single frames.
Format: docs/formats/layer.md; draft EROFS image spec 640fd6a5, 3.3 and 3.4.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.layer import pages
from envbuilder.layer.chunks import Chunk, ChunkIndex, index_annotations, skippable
from envbuilder.layer.frame_worker import Frame, Framer
from envbuilder.layer.framing import Framing
from envbuilder.layer.tar import Writable
from envbuilder.layer.write_behind import Hashed, Hashing, WriteBehind
from envbuilder.oci import media_types

#: Uncompressed bytes of every chunk but the last: ratio within 4 points of one frame, starts as fast as with 256 KiB
#: (docs/decisions/0012-compressor-and-cores.md); 48 bytes of index each.
CHUNK_SIZE = 4 * pages.GROUP_SIZE
#: zstd level: 3 halves the time of gzip -6 and is 10 % smaller (build.md 6).
LEVEL = 3
#: What decides the bytes of a blob besides the tar: part of every layer's recipe.
COMPRESSOR = f"zstd/{'.'.join(map(str, zstandard.ZSTD_VERSION))} level={LEVEL} chunk={CHUNK_SIZE}"
#: Chunks that wait for one before them: more than helpers have slots, so that a slow helper does not stop the caller.
_MOST_WAITING = 32


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


class FrameWriter:
    """Takes an uncompressed stream and writes the blob to ``out``; memory is two chunks, with helpers
    sixteen more and eight a helper.

    ``finish`` ends the blob and must be called once; ``close`` in its place gives up. A context manager. Not
    thread-safe. helpers: processes that may compress and hash chunks while the caller makes the next; when all are
    busy, the caller does it itself. ``out`` is then written by a thread. The bytes are the same.
    chunk_size: a whole number of groups of pages; layers of old have ``GROUP_SIZE``.

    Raises:
        FramingDied: a helper was killed.
    """

    def __init__(
        self,
        out: Writable,
        *,
        media_type: str = media_types.OCI_LAYER_TAR_ZSTD,
        helpers: int = 0,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        self._chunk_size = chunk_size
        self._helpers = Framing(helpers, chunk_size=chunk_size, level=LEVEL) if helpers else None
        hashing = out if isinstance(out, Hashing) else Hashed(out)
        self._behind = WriteBehind(hashing) if helpers else None
        self._out = self._behind or hashing
        self._media_type = media_type
        self._framer = Framer(LEVEL)
        self._slot = self._helpers.take() if self._helpers else None
        self._chunk = self._room()
        self._filled = 0
        self._waiting: deque[_Waiting] = deque()
        self._diff_id = hashlib.sha256()
        self._offsets, self._blob_offsets, self._checksums = [0], [0], bytearray()
        self._nodes = bytearray()

    def write(self, data: bytes | memoryview, /) -> int:
        """Take the next bytes of the stream, all of them."""
        view = memoryview(data)
        size, taken = len(view), 0
        while taken < size:
            part = min(size - taken, self._chunk_size - self._filled)
            self._chunk[self._filled : self._filled + part] = view[taken : taken + part]
            self._filled += part
            taken += part
            if self._filled == self._chunk_size:
                self._end_chunk()
        return size

    def finish(self) -> Framed:
        """End the last chunk, write the chunk index behind it, and say what the blob is."""
        if self._filled:
            self._end_chunk()
        while self._waiting:
            self._append_done(wait=True)
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
        self.close()
        diff_id = Digest("sha256:" + self._diff_id.hexdigest())
        return Framed(blob=blob, diff_id=diff_id, tar_size=self._offsets[-1], index=index)

    def close(self) -> None:
        """End the helpers; a no-op after ``finish``."""
        if self._helpers is not None:
            self._helpers.close()
        if self._behind is not None:
            self._behind.close()

    def __enter__(self) -> FrameWriter:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _room(self) -> memoryview:
        if self._helpers is None or self._slot is None:
            return memoryview(bytearray(self._chunk_size))
        return self._helpers.chunk(self._slot)

    def _end_chunk(self) -> None:
        size, self._filled = self._filled, 0
        chunk = self._chunk[:size]
        if self._helpers is None or self._slot is None:
            self._diff_id.update(chunk)
            self._append(size, self._framer.frame(chunk))
            return
        following = self._helpers.take()
        if following is None:  # all are busy: this chunk is ours, and its slot is free when it is done
            self._diff_id.update(chunk)
            self._waiting.append(_Waiting(None, size, self._framer.frame(chunk)))
        else:
            self._waiting.append(_Waiting(self._slot, size))
            self._helpers.start(self._slot, size)
            self._diff_id.update(chunk)  # the one hash that has an order: meanwhile, here
            self._slot, self._chunk = following, self._helpers.chunk(following)
        self._append_done(wait=len(self._waiting) > _MOST_WAITING)

    def _append_done(self, *, wait: bool) -> None:
        """Append the chunks that are done and whose turn it is; with ``wait`` one at least."""
        assert self._helpers is not None
        while self._waiting:
            first = self._waiting[0]
            while first.frame is None and (answer := self._helpers.answer(wait=wait)) is not None:
                slot, frame = answer
                next(each for each in self._waiting if each.slot == slot and each.frame is None).frame = frame
            if first.frame is None:
                return
            self._append(first.size, first.frame)
            self._waiting.popleft()
            if first.slot is not None:
                self._helpers.free(first.slot)
            wait = False

    def _append(self, size: int, frame: Frame) -> None:
        self._nodes += frame.nodes
        self._checksums += frame.checksum
        self._offsets.append(self._offsets[-1] + size)
        self._blob_offsets.append(self._blob_offsets[-1] + len(frame.data))
        self._out.write(frame.data)


@dataclass(slots=True)
class _Waiting:
    """A chunk whose turn has not come: the helpers' slot that it is in, if any; its frame once it is made."""

    slot: int | None
    size: int
    frame: Frame | None = None


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
