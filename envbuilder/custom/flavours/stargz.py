"""eStargz: a tar.gz in which each file, or 4 MiB of one, is a gzip member of its own, listed in a table at the end.

Source: stargz-snapshotter docs/estargz.md and estargz/build.go (v0.18). Any runtime reads it as an ordinary layer. Its
tar has two entries more than the one it is made of (a landmark at the beginning, the table at the end), so that its
diff_id is another. Without `.prefetch.landmark` nothing is fetched before it is read: fetching whole files ahead is
what makes eStargz slow for AI images (lazy_start.md 5.8).
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import zlib
from functools import partial
from typing import Any, BinaryIO

from envbuilder.custom.flavours.compressing import PieceWriter
from envbuilder.custom.flavours.entries import NoFlavour, Part, parts
from envbuilder.custom.flavours.written import WrittenLayer
from envbuilder.digest import Digest
from envbuilder.layer.tar import Writable
from envbuilder.oci import media_types

#: Raise it when the bytes of a layer would change.
STARGZ_WRITER = "estargz/1"
#: zlib's: 9, the default of others, takes three times as long for 1 % less.
_LEVEL = 6
#: Bytes of a member, the default of estargz.Build.
_CHUNK = 4 << 20
_LANDMARK, _LANDMARK_DATA = ".no.prefetch.landmark", b"\x0f"
_TABLE = "stargz.index.json"
_RESERVED = frozenset({"no.prefetch.landmark", "prefetch.landmark", _TABLE})
_BLOCK = tarfile.BLOCKSIZE


def write_stargz(tar: BinaryIO, out: Writable, *, jobs: int, source: str) -> WrittenLayer:
    """Write the tar in ``tar``, a seekable file, to ``out`` as an eStargz layer.

    Raises:
        NoFlavour: it has what no table can describe.
    """
    entries: list[dict[str, Any]] = []
    with PieceWriter(out, _member, jobs=jobs) as writer:
        _add_landmark(writer, entries)
        size, pending = len(_LANDMARK_DATA), bytes(-len(_LANDMARK_DATA) % _BLOCK)
        for part in parts(tar, source=source):
            if part.entry["name"].strip("./") in _RESERVED:
                raise NoFlavour(f"{source}: {part.entry['name']!r}: it is eStargz already")
            pending += part.head
            entry, size = _entry(part), part.size
            entries.append(entry)
            if part.size:
                writer.add(pending)
                _add_data(tar, part, writer, entry, entries)
                pending = b""
        writer.add(pending or bytes(-size % _BLOCK))
        writer.flush()
        text = json.dumps({"version": 1, "entries": entries}, separators=(",", ":")).encode()
        table = _header(_TABLE, len(text)) + text + bytes(-len(text) % _BLOCK) + bytes(2 * _BLOCK)
        at = writer.size
        writer.write(_member(table))
        writer.also_plain(table)
        writer.write(_footer(at))
        return WrittenLayer(
            media_type=media_types.OCI_LAYER_TAR_GZIP,
            digest=writer.digest,
            size=writer.size,
            diff_id=writer.diff_id,
            notes={media_types.STARGZ_TOC_DIGEST: str(Digest.of(text))},
        )


def _add_landmark(writer: PieceWriter, entries: list[dict[str, Any]]) -> None:
    entry: dict[str, Any] = {"type": "reg", "name": _LANDMARK, "size": len(_LANDMARK_DATA)}
    entry["digest"] = entry["chunkDigest"] = str(Digest.of(_LANDMARK_DATA))
    entries.append(entry)
    writer.add(_header(_LANDMARK, len(_LANDMARK_DATA), mode=0))
    writer.add(_LANDMARK_DATA, partial(_place, entry))


def _add_data(
    tar: BinaryIO, part: Part, writer: PieceWriter, entry: dict[str, Any], entries: list[dict[str, Any]]
) -> None:
    whole, at = hashlib.sha256(), 0
    piece = entry
    while at < part.size:
        data = tar.read(min(_CHUNK, part.size - at))
        whole.update(data)
        piece["chunkDigest"] = str(Digest.of(data))
        if part.size > _CHUNK:
            piece |= {"chunkOffset": at, "chunkSize": len(data)}
        writer.add(data, partial(_place, piece))
        at += len(data)
        if at < part.size:
            piece = {"type": "chunk", "name": entry["name"]}
            entries.append(piece)
    entry["digest"] = "sha256:" + whole.hexdigest()


def _entry(part: Part) -> dict[str, Any]:
    entry = {key: value for key, value in part.entry.items() if key not in ("accesstime", "changetime")}
    if "modtime" in entry:
        entry["modtime"] = entry["modtime"][:19] + "Z"
    if entry["type"] == "reg" and not part.size:
        entry["digest"] = str(Digest.of(b""))
    return entry


def _place(entry: dict[str, Any], begin: int, _end: int) -> None:
    entry["offset"] = begin


def _header(name: str, size: int, mode: int = 0o444) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, mode
    return info.tobuf(tarfile.USTAR_FORMAT)


def _member(data: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    return compressor.compress(data) + compressor.flush()


def _footer(table_at: int) -> bytes:
    """An empty gzip member whose Extra field says where the table begins: 51 bytes."""
    extra = b"SG\x16\0" + b"%016xSTARGZ" % table_at
    head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + len(extra).to_bytes(2, "little")
    return head + extra + b"\x01\0\0\xff\xff" + bytes(8)
