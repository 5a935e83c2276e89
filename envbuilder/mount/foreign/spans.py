"""How the bytes of a device lie in a blob that others made: pieces of gzip or zstd members, each with its SHA-256.

A device is what EROFS reads: for layers with a table of contents the data of their files, each on a block of its own;
for the rest the uncompressed tar. Neighbouring pieces are fetched together as one *chunk*. Unlike our own
chunks, which are checked as stored, a piece is checked when it is unpacked; how much is unpacked is bounded before.
Format of the file: docs/formats/foreign-index.md. Parsing trusts nothing.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from envbuilder.errors import IntegrityError
from envbuilder.layer.chunks import MAX_CHUNK_SIZE, Chunk, chunk_between
from envbuilder.layer.frames import BadChunk
from envbuilder.mount.foreign.members import DAMAGES, Member, Unpacking, inflate, unzip, unzstd
from envbuilder.mount.request import Device

#: Uncompressed bytes from which on a chunk is not joined by the next piece: as many as our own chunks have.
JOINED = 256 << 10
_MAGIC, _HEAD = b"EBSPANS1", struct.Struct("<8sI")
_SHA256_SIZE = 32
_MAX_TABLE = 64 << 20
_COLUMNS = ("at", "size", "member", "skip")
#: "deflate": gzip by checkpoints; "whole": not by ranges at all.
_CODECS = ("gzip", "zstd", "deflate", "plain", "whole")


class BadSpans(IntegrityError):
    """A table of pieces contradicts itself or its blob."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``size`` bytes of a device from ``at`` on: in the member at ``member`` of the blob, behind ``skip`` bytes.

    sha256: of these bytes. window: with codec "deflate", what goes before them (members.py); else empty.
    """

    at: int
    size: int
    member: int
    sha256: bytes
    skip: int = 0
    window: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanMap:
    """The chunks of one device; stands in for a ``ChunkIndex``.

    offsets, blob_offsets: where each chunk begins on the device and in the blob; one more item says where the
        last one ends. pieces: of each chunk, in order; between and behind them a device has zeros.
    """

    codec: str
    offsets: tuple[int, ...]
    blob_offsets: tuple[int, ...]
    firsts: tuple[int, ...]
    pieces: Sequence[Piece] = field(repr=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Chunk:
        return chunk_between(self.offsets, self.blob_offsets, number)

    @property
    def size(self) -> int:
        """Bytes of the device."""
        return self.offsets[-1]

    @property
    def is_readable(self) -> bool:
        """Whether ranges of the blob are enough."""
        return self.codec != "whole"

    def read(self, number: int, stored: bytes, *, source: str) -> bytes:
        """The bytes of chunk ``number``, from its bytes in the blob; every piece is checked.

        Raises:
            BadChunk: a piece is not the one that the table names.
        """
        chunk = self[number]
        data = bytearray(chunk.size)
        unpacking: Unpacking | None = None
        member = -1
        try:
            for piece in self.pieces[self.firsts[number] : self.firsts[number + 1]]:
                if piece.member != member or unpacking is None or unpacking.done > piece.skip:
                    member = piece.member
                    unpacking = self._unpacking(piece, memoryview(stored)[member - chunk.blob_offset :])
                unpacking.skip(piece.skip - unpacking.done)
                plain = unpacking.take(piece.size)
                if hashlib.sha256(plain).digest() != piece.sha256:
                    raise BadChunk(
                        f"{source}: {piece.size} bytes at {piece.at} of the device: want sha256:{piece.sha256.hex()}, "
                        f"got sha256:{hashlib.sha256(plain).hexdigest()}",
                        hint="Fetch it again; if it stays wrong, the source is corrupt or hostile.",
                    )
                data[piece.at - chunk.offset : piece.at - chunk.offset + piece.size] = plain
        except DAMAGES as error:
            raise BadChunk(f"{source}: chunk {number}: {error}") from error
        return bytes(data)

    def _unpacking(self, piece: Piece, stored: memoryview) -> Unpacking:
        if self.codec == "zstd":
            return Unpacking(unzstd(stored))
        if self.codec == "gzip":
            return Unpacking(unzip(stored))
        if self.codec == "deflate":
            return Unpacking(inflate(stored, Member.load(piece.window)))
        if self.codec == "plain":
            return Unpacking(iter([bytes(stored)]))
        raise EOFError("this layer cannot be read by ranges")

    def dump(self) -> bytes:
        """The table as a file: a JSON head, then columns, checksums and windows."""
        windows = [piece.window for piece in self.pieces]
        head = {
            "codec": self.codec,
            "offsets": list(self.offsets),
            "blob_offsets": list(self.blob_offsets),
            "firsts": list(self.firsts),
            "pieces": len(self.pieces),
            "windows": [len(window) for window in windows] if any(windows) else [],
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        columns = b"".join(array("Q", [getattr(piece, name) for piece in self.pieces]).tobytes() for name in _COLUMNS)
        sums = b"".join(piece.sha256 for piece in self.pieces)
        return _HEAD.pack(_MAGIC, len(text)) + text + columns + sums + b"".join(windows)


def span_map(codec: str, pieces: Sequence[Piece], *, device_size: int, blob_end: int, joined: int = JOINED) -> SpanMap:
    """The map of ``pieces``, which are in the order of the device and of the blob, joined to chunks.

    blob_end: where the last member ends at the latest.

    Raises:
        BadSpans: they overlap, are too large, or lie outside.
    """
    offsets, firsts = [0], [0]
    blob_offsets: list[int] = []
    for number, piece in enumerate(pieces):
        if not blob_offsets:
            blob_offsets.append(piece.member)
        elif piece.member != pieces[number - 1].member and piece.at - offsets[-1] >= joined:
            offsets.append(piece.at)
            blob_offsets.append(piece.member)
            firsts.append(number)
    if pieces:
        offsets.append(device_size)
        blob_offsets.append(blob_end)
        firsts.append(len(pieces))
    made = SpanMap(
        codec=codec,
        offsets=tuple(offsets),
        blob_offsets=tuple(blob_offsets) or (0,),
        firsts=tuple(firsts),
        pieces=pieces,
    )
    _check(made, blob_end)
    return made


def parse_spans(data: bytes | memoryview, *, blob_size: int, source: str) -> SpanMap:
    """The table in ``data``, of a blob of ``blob_size`` bytes.

    Raises:
        BadSpans: it is none, or contradicts itself.
    """
    view = memoryview(data)
    try:
        magic, size = _HEAD.unpack_from(view)
        if magic != _MAGIC or size > _MAX_TABLE:
            raise BadSpans(f"{source}: not a table of pieces")
        head = json.loads(bytes(view[_HEAD.size : _HEAD.size + size]))
        count, rest = int(head["pieces"]), view[_HEAD.size + size :]
        sizes = head["windows"] or [0] * count
        wide = 8 * len(_COLUMNS) + _SHA256_SIZE
        if not 0 <= count <= len(rest) // wide or len(sizes) != count or len(rest) != count * wide + sum(sizes):
            raise BadSpans(f"{source}: {len(rest)} bytes do not hold {count} pieces")
        columns = [array("Q", bytes(rest[8 * count * place : 8 * count * (place + 1)])) for place in range(4)]
        made = SpanMap(
            codec=str(head["codec"]),
            offsets=tuple(map(int, head["offsets"])),
            blob_offsets=tuple(map(int, head["blob_offsets"])),
            firsts=tuple(map(int, head["firsts"])),
            pieces=_Table(columns, rest[32 * count :], sizes),
        )
        _check(made, blob_size)
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise BadSpans(f"{source}: {type(error).__name__}: {error}") from error
    return made


def read_spans(device: Device) -> SpanMap | None:
    """The table of a device of others; None: it is one of ours.

    Raises:
        BadSpans: it is gone or altered.
    """
    if device.spans is None:
        return None
    source = f"layer {device.blob.digest}"
    try:
        with device.spans.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise BadSpans(f"{source}: {device.spans}: {error}") from error
    return parse_spans(memoryview(mapped), blob_size=device.blob.size, source=source)


def _check(spans: SpanMap, blob_size: int) -> None:
    """Everything that reading relies on.

    Raises:
        BadSpans: see there.
    """
    count = len(spans)
    if spans.codec not in _CODECS:
        raise BadSpans(f"want a codec of {', '.join(_CODECS)}, got {spans.codec[:20]!r}")
    if not (len(spans.blob_offsets) == len(spans.firsts) == count + 1) or (spans.offsets[0], spans.firsts[0]) != (0, 0):
        raise BadSpans("chunks and pieces do not fit")
    if spans.firsts[-1] != len(spans.pieces) or not 0 <= spans.blob_offsets[0] <= spans.blob_offsets[-1] <= blob_size:
        raise BadSpans("pieces lie outside the blob")
    for number, (start, stop) in enumerate(pairwise(spans.offsets)):
        stored = spans.blob_offsets[number + 1] - spans.blob_offsets[number]
        if not 0 < stop - start <= MAX_CHUNK_SIZE + JOINED or not 0 < stored <= 2 * MAX_CHUNK_SIZE:
            raise BadSpans(f"chunk {number} has {stop - start} bytes, {stored} as stored")
        at, member = start, spans.blob_offsets[number]
        first, last = spans.firsts[number], spans.firsts[number + 1]
        if not first < last:
            raise BadSpans(f"chunk {number} has no pieces")
        for piece in spans.pieces[first:last]:
            if not (at <= piece.at and piece.size > 0 and piece.at + piece.size <= stop):
                raise BadSpans(f"chunk {number}: a piece at {piece.at} of {piece.size} bytes")
            if not member <= piece.member < spans.blob_offsets[number + 1] or piece.skip > MAX_CHUNK_SIZE:
                raise BadSpans(f"chunk {number}: a piece at {piece.member} of the blob")
            at, member = piece.at + piece.size, piece.member


class _Table(Sequence[Piece]):
    """Pieces made when they are asked for: a layer may have a million, and windows of 32 KiB."""

    def __init__(self, columns: Sequence[array[int]], rest: memoryview, windows: Sequence[int]) -> None:
        self._columns, self._rest, self._count = columns, rest, len(columns[0])
        self._ends = [self._count * _SHA256_SIZE]
        for size in windows if any(windows) else ():
            self._ends.append(self._ends[-1] + size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, where: int | slice) -> Piece | list[Piece]:  # type: ignore[override]
        if isinstance(where, slice):
            return [self._piece(number) for number in range(*where.indices(self._count))]
        return self._piece(range(self._count)[where])

    def _piece(self, number: int) -> Piece:
        at, size, member, skip = (column[number] for column in self._columns)
        checksum = bytes(self._rest[number * _SHA256_SIZE : (number + 1) * _SHA256_SIZE])
        window = bytes(self._rest[self._ends[number] : self._ends[number + 1]]) if len(self._ends) > 1 else b""
        return Piece(at, size, member, checksum, skip, window)
