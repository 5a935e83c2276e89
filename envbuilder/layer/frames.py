"""A tar becomes a layer blob: one zstd frame a chunk, the chunk index behind them.

Any zstd decoder reads the whole as one tar; a lazy reader fetches and checks single frames.
Format: docs/formats/layer.md; draft EROFS image spec 640fd6a5, 3.3 and 3.4.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.layer import pages
from envbuilder.layer.chunks import Chunk, ChunkIndex, index_annotations, skippable
from envbuilder.layer.frame_worker import Framer
from envbuilder.layer.framing import Framing
from envbuilder.layer.in_turn import Behind, InTurn
from envbuilder.layer.tar import Writable
from envbuilder.oci import media_types

#: Uncompressed bytes of every chunk but the last: ratio within 4 points of one frame, starts as fast as with 256 KiB
#: (docs/decisions/0012-compressor-and-cores.md); 48 bytes of index each.
CHUNK_SIZE = 4 * pages.GROUP_SIZE
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


class FrameWriter:
    """Takes an uncompressed stream and writes the blob to ``out``; memory is two chunks, with helpers
    18 and eight a helper.

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
        self._media_type = media_type
        self._out = InTurn(out)
        self._framer = Framer(LEVEL)
        self._helpers = Framing(helpers, chunk_size=chunk_size, level=LEVEL) if helpers else None
        self._behind = Behind(self._out, self._helpers) if self._helpers else None
        self._slot = self._behind.take() if self._behind else 0
        self._chunk = self._helpers.chunk(self._slot) if self._helpers else memoryview(bytearray(chunk_size))
        self._filled = 0

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
        if self._behind is not None:
            self._behind.finish()
        self.close()
        index = self._out.index
        payload, start = index.dump(), index.blob_offsets[-1]
        frame = skippable(payload)
        blob = Descriptor(
            media_type=self._media_type,
            digest=self._out.write(frame),
            size=start + len(frame),
            annotations={
                **index_annotations(payload, start=start),
                media_types.LAYER_PAGES: str(pages.root(self._out.nodes)),
            },
        )
        return Framed(blob=blob, diff_id=self._out.diff_id, tar_size=index.size, index=index)

    def close(self) -> None:
        """End the helpers; a no-op after ``finish``."""
        if self._helpers is not None and self._behind is not None:
            self._helpers.stop()
            self._behind.close()
            self._helpers.close()

    def __enter__(self) -> FrameWriter:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_chunk(self) -> None:
        size, self._filled = self._filled, 0
        chunk = self._chunk[:size]
        if self._helpers is None or self._behind is None:
            self._out.append(chunk, self._framer.frame(chunk))
            return
        if self._helpers.is_busy:
            self._behind.append(self._slot, size, self._framer.frame(chunk))
        else:
            self._helpers.start(self._slot, size)
            self._behind.append(self._slot, size, None)
        self._slot = self._behind.take()
        self._chunk = self._helpers.chunk(self._slot)


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
