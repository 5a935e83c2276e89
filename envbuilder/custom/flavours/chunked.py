"""zstd:chunked: a tar.zst in which each file, or a MiB of one, is a frame of its own, listed in a frame to pass over.

Source: containers/storage pkg/chunked (main, 2025). Any runtime with zstd reads it as an ordinary layer. The tar is the
same, and so are its diff_id and the image's config. Files are cut every MiB, not by a rolling checksum: a file that
changed a little shares less with its old self, and the same bytes come out everywhere.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from functools import partial
from typing import Any, BinaryIO

import zstandard

from envbuilder.custom.flavours.compressing import PieceWriter
from envbuilder.custom.flavours.crc64 import crc64
from envbuilder.custom.flavours.entries import Part, parts
from envbuilder.custom.flavours.tarsplit import TarSplit
from envbuilder.custom.flavours.written import WrittenLayer
from envbuilder.digest import Digest
from envbuilder.layer.tar import Writable
from envbuilder.oci import media_types

#: Raise it when the bytes of a layer would change; they also follow from the zstandard library's version.
CHUNKED_WRITER = f"zstd-chunked/1 zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))}"
_LEVEL = 3
_CHUNK = 1 << 20
_SKIPPABLE = b"\x50\x2a\x4d\x18"
_HEAD_SIZE = 8
_FOOTER = struct.Struct("<QQQQQQQ8s")
_CRFS = 1
_MAGIC = b"GNUlInUx"
_here = threading.local()


def write_chunked(tar: BinaryIO, out: Writable, *, jobs: int, source: str) -> WrittenLayer:
    """Write the tar in ``tar``, a seekable file, to ``out`` as a zstd:chunked layer.

    Raises:
        NoFlavour: it has what no table can describe.
    """
    entries: list[dict[str, Any]] = []
    split = TarSplit()
    end = 0
    with PieceWriter(out, _frame, jobs=jobs) as writer:
        pending = b""
        for part in parts(tar, source=source):
            pending += part.head
            end += len(part.head) + part.size
            split.segment(part.head)
            entry = dict(part.entry)
            entries.append(entry)
            checksum = None
            if part.size:
                writer.add(pending)
                checksum = _add_data(tar, part, writer, entry, entries)
                pending = b""
            split.file(entry["name"], part.size, checksum)
        tar.seek(end)
        rest = tar.read()
        split.segment(rest)
        writer.add(pending + rest)
        writer.flush()
        diff_id = writer.diff_id
        splits = split.stored(_frame)
        table = {"version": 1, "entries": entries, "tarSplitDigest": str(Digest.of(splits))}
        text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
        notes = _close(writer, text, splits, split.size)
        return WrittenLayer(
            media_type=media_types.OCI_LAYER_TAR_ZSTD,
            digest=writer.digest,
            size=writer.size,
            diff_id=diff_id,
            notes=notes,
        )


def _add_data(
    tar: BinaryIO, part: Part, writer: PieceWriter, entry: dict[str, Any], entries: list[dict[str, Any]]
) -> int:
    """The CRC-64 of the file."""
    whole, at, checksum = hashlib.sha256(), 0, 0
    piece = entry
    while at < part.size:
        data = tar.read(min(_CHUNK, part.size - at))
        whole.update(data)
        checksum = crc64(data, checksum)
        if part.size > _CHUNK:
            piece |= {"chunkSize": len(data), "chunkDigest": str(Digest.of(data))}
            if at:
                piece["chunkOffset"] = at
        writer.add(data, partial(_place, piece, entry))
        at += len(data)
        if at < part.size:
            piece = {"type": "chunk", "name": entry["name"]}
            entries.append(piece)
    entry["digest"] = "sha256:" + whole.hexdigest()
    return checksum


def _place(piece: dict[str, Any], entry: dict[str, Any], begin: int, end: int) -> None:
    piece["offset"] = begin
    entry["endOffset"] = end


def _close(writer: PieceWriter, text: bytes, splits: bytes, splits_size: int) -> dict[str, str]:
    """Write table, tar-split and footer; the notes by which a reader finds and proves them."""
    table = _frame(text)
    at = writer.size + _HEAD_SIZE
    splits_at = at + len(table) + _HEAD_SIZE
    footer = _FOOTER.pack(at, len(table), len(text), _CRFS, splits_at, len(splits), splits_size, _MAGIC)
    for data in (table, splits, footer):
        writer.write(_SKIPPABLE + len(data).to_bytes(4, "little") + data)
    notes = {media_types.ZSTD_CHUNKED[0] + ".tarsplit-position": f"{splits_at}:{len(splits)}:{splits_size}"}
    for prefix in media_types.ZSTD_CHUNKED:  # podman 4 knows the older keys only
        notes[prefix + ".manifest-checksum"] = str(Digest.of(table))
        notes[prefix + ".manifest-position"] = f"{at}:{len(table)}:{len(text)}:{_CRFS}"
    return notes


def _frame(data: bytes) -> bytes:
    compressor: zstandard.ZstdCompressor | None = getattr(_here, "compressor", None)
    if compressor is None:
        compressor = _here.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    return compressor.compress(data)
