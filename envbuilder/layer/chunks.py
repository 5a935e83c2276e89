"""The chunk index of a blob: where each chunk lies, and the SHA-256 of its bytes as stored.

Format: draft EROFS image spec 640fd6a5, 3.4, embedded as trailing zstd skippable frame. Only
what we write is read: zstd frames with SHA-256. Parsing is pure and trusts nothing.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.oci import media_types

#: Bytes that one chunk may have, uncompressed; bounds what a reader of a hostile index allocates.
MAX_CHUNK_SIZE = 16 << 20
#: Bytes that an index may have: 1.4 million chunks, 1.4 TB at our chunk size.
MAX_INDEX_SIZE = 64 << 20

#: 3.4.1: magic, version, compression type, flags, uncompressed size, chunks, hash family, hash size, reserved.
_HEADER = struct.Struct("<4sBBHQIBB10s")
_MAGIC = b"\xcd\xe4\xec\x67"
_VERSION, _ZSTD, _SHA2, _SHA256_SIZE = 1, 1, 1, 32
#: 3.4.2: offset in the blob, offset in the uncompressed stream, SHA-256.
_ENTRY = struct.Struct("<QQ32s")
#: zstd skippable frame (RFC 8878, 3.1.2): magic, size of what follows.
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A50
#: 2.3: ``range = offset [ ":" end ]``.
_RANGE = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?\Z")


class CorruptChunkIndex(IntegrityError):
    """A chunk index contradicts its own blob, its digest or itself."""


class UnknownChunkIndex(IntegrityError):
    """A chunk index of another version, compression or hash than ours: read the blob from its beginning."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its place in the uncompressed stream and in the blob, in bytes, and its checksum."""

    number: int
    offset: int
    size: int
    blob_offset: int
    blob_size: int
    sha256: bytes  # of the ``blob_size`` bytes as stored


def chunk_between(offsets: Sequence[int], blob_offsets: Sequence[int], number: int, sha256: bytes = b"") -> Chunk:
    """Chunk ``number`` of those that begin at ``offsets``, the last of which ends one.

    Raises:
        IndexError: there is none of that number.
    """
    if not 0 <= number < len(offsets) - 1:
        raise IndexError(number)
    offset, blob_offset = offsets[number], blob_offsets[number]
    return Chunk(
        number, offset, offsets[number + 1] - offset, blob_offset, blob_offsets[number + 1] - blob_offset, sha256
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkIndex:
    """All chunks of one blob, in order and without gaps.

    offsets, blob_offsets: where each chunk begins in the uncompressed stream and in the blob; one
        more item says where the last one ends.
    checksums: the SHA-256 of each chunk's bytes as stored, 32 bytes each.
    """

    offsets: tuple[int, ...]
    blob_offsets: tuple[int, ...]
    checksums: bytes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Chunk:
        checksum = self.checksums[number * _SHA256_SIZE : (number + 1) * _SHA256_SIZE]
        return chunk_between(self.offsets, self.blob_offsets, number, checksum)

    def __iter__(self) -> Iterator[Chunk]:
        return (self[number] for number in range(len(self)))

    @property
    def size(self) -> int:
        """Bytes of the uncompressed stream."""
        return self.offsets[-1]

    def chunk_at(self, offset: int) -> Chunk:
        """The chunk that has the byte ``offset`` of the uncompressed stream.

        Raises:
            IndexError: ``offset`` is negative or not below ``size``.
        """
        if not 0 <= offset < self.size:
            raise IndexError(offset)
        return self[bisect_right(self.offsets, offset) - 1]

    def dump(self) -> bytes:
        """The index as the spec writes it, without the frame around it."""
        header = _HEADER.pack(_MAGIC, _VERSION, _ZSTD, 0, self.size, len(self), _SHA2, _SHA256_SIZE, b"")
        return header + b"".join(_ENTRY.pack(chunk.blob_offset, chunk.offset, chunk.sha256) for chunk in self)


def parse_index(data: bytes, *, end: int, source: str) -> ChunkIndex:
    """The index in ``data``, whose last chunk ends at blob offset ``end``.

    Raises:
        CorruptChunkIndex: wrong length, chunks that overlap, are empty or too large.
        UnknownChunkIndex: a version, compression, hash or flag that we do not know.
    """
    if not _HEADER.size <= len(data) <= MAX_INDEX_SIZE:
        raise CorruptChunkIndex(f"{source}: chunk index: want 32 to {MAX_INDEX_SIZE} bytes, got {len(data)}")
    magic, version, compression, flags, size, count, family, hash_size, reserved = _HEADER.unpack_from(data)
    if magic != _MAGIC or any(reserved):
        raise CorruptChunkIndex(f"{source}: chunk index: header is none: {data[: _HEADER.size].hex()}")
    if (version, compression, flags, family, hash_size) != (_VERSION, _ZSTD, 0, _SHA2, _SHA256_SIZE):
        raise UnknownChunkIndex(
            f"{source}: chunk index: want version 1, zstd, no flags, SHA-256, got version {version}, "
            f"compression {compression}, flags {flags:#x}, hash {family} of {hash_size} bytes"
        )
    if len(data) != _HEADER.size + count * _ENTRY.size:
        raise CorruptChunkIndex(f"{source}: chunk index: {len(data)} bytes do not hold {count} chunks")
    entries = list(_ENTRY.iter_unpack(memoryview(data)[_HEADER.size :]))
    index = ChunkIndex(
        offsets=(*(offset for _, offset, _ in entries), size),
        blob_offsets=(*(offset for offset, _, _ in entries), end if entries else 0),
        checksums=b"".join(checksum for _, _, checksum in entries),
    )
    if index.offsets[0] != 0:
        raise CorruptChunkIndex(f"{source}: chunk index: the first chunk begins at {index.offsets[0]}, not 0")
    for name, offsets in (("", index.offsets), (" in the blob", index.blob_offsets)):
        for number, (start, stop) in enumerate(pairwise(offsets)):
            if not 0 < stop - start <= MAX_CHUNK_SIZE + (MAX_CHUNK_SIZE >> 8):
                raise CorruptChunkIndex(f"{source}: chunk index: chunk {number}{name} has {stop - start} bytes")
    return index


def skippable(payload: bytes) -> bytes:
    """``payload`` in a zstd skippable frame, which every decoder passes over."""
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(payload)) + payload


def index_annotations(payload: bytes, *, start: int) -> dict[str, str]:
    """The annotations of a blob whose skippable frame with ``payload`` begins at ``start`` and is its end."""
    return {
        media_types.EROFS_CHUNK_INDEX_RANGE: f"{start}:{start + _SKIPPABLE.size + len(payload)}",
        media_types.EROFS_CHUNK_INDEX_DIGEST: str(Digest.of(payload)),
    }


def index_range(blob: Descriptor, *, source: str) -> tuple[int, int] | None:
    """Offset and end, in the blob, of the frame with its chunk index; None when it has none.

    Raises:
        CorruptChunkIndex: the annotation is malformed, outside the blob or too large.
    """
    text = blob.annotations.get(media_types.EROFS_CHUNK_INDEX_RANGE)
    if text is None:
        return None
    match = _RANGE.match(text)
    start, end = (int(match[1]), int(match[2] or blob.size)) if match else (0, 0)
    if not (0 <= start < end <= blob.size and _SKIPPABLE.size + _HEADER.size <= end - start <= MAX_INDEX_SIZE):
        raise CorruptChunkIndex(f"{source}: {media_types.EROFS_CHUNK_INDEX_RANGE}: {text!r} of {blob.size} bytes")
    return start, end


def even_chunk_size(blob: Descriptor, size: int, *, unit: int, source: str) -> int:
    """Bytes of every chunk but the last of a layer of ``size`` bytes, as its length tells before the index is here.

    ``unit``, or twice as much, or four times, ...; 0 when it has no chunk index, or one of another length. What it
    says is to be compared with the index.

    Raises:
        CorruptChunkIndex: see ``index_range``.
    """
    where = index_range(blob, source=source)
    if where is None:
        return 0
    count, rest = divmod(where[1] - where[0] - _SKIPPABLE.size - _HEADER.size, _ENTRY.size)
    while -(-size // unit) > count > 0 and unit < MAX_CHUNK_SIZE:
        unit *= 2
    return unit if rest == 0 and -(-size // unit) == count else 0


def open_index(blob: Descriptor, frame: bytes, *, source: str) -> ChunkIndex:
    """The chunk index in ``frame``, the bytes of ``index_range(blob)``, checked against the blob's annotations.

    Raises:
        CorruptChunkIndex: not the bytes that the annotations name, or see ``parse_index``.
        UnknownChunkIndex: see ``parse_index``.
    """
    where = index_range(blob, source=source)
    if where is None or len(frame) != where[1] - where[0]:
        raise CorruptChunkIndex(f"{source}: chunk index: want the bytes {where}, got {len(frame)} bytes")
    magic, size = _SKIPPABLE.unpack_from(frame)
    payload = frame[_SKIPPABLE.size :]
    if magic & 0xFFFFFFF0 != _SKIPPABLE_MAGIC or size != len(payload):
        raise CorruptChunkIndex(f"{source}: chunk index: no zstd skippable frame at {where[0]}")
    want, got = blob.annotations.get(media_types.EROFS_CHUNK_INDEX_DIGEST), str(Digest.of(payload))
    if got != want:
        raise CorruptChunkIndex(f"{source}: chunk index: want {want}, got {got}")
    return parse_index(payload, end=where[0], source=source)
