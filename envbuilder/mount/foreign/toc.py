"""The tables of contents inside eStargz and zstd:chunked layers: names, attributes, and where each file's data lie.

Both are JSON of nearly the same shape. The manifest names a digest of the table, the table one of every piece of data:
all of it is bound to the image. Sources: stargz-snapshotter docs/estargz.md (v0.18); containers/storage
pkg/chunked/internal/minimal/compression.go; lazy_start.md 8. Parsing trusts nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.layer.chunks import MAX_CHUNK_SIZE
from envbuilder.layer.tree import Placed
from envbuilder.mount.foreign.spans import Piece, SpanMap, span_map
from envbuilder.oci import media_types
from envbuilder.oci.tables import chunked_notes
from envbuilder.paths import entry_path
from envbuilder.store.target import RangeTarget

#: Bytes of a table, stored and as JSON: some 500,000 files.
_MAX_STORED, _MAX_JSON = 64 << 20, 256 << 20
#: A file's data begin on a block of the device: pages of the kernel's then have one file each.
_BLOCK = 4096
#: eStargz: an empty gzip member whose Extra field is "SG", its size, and the offset of the table in hex.
_FOOTER_SIZE = 51
_FOOTER = re.compile(rb"\x1f\x8b\x08\x04.{6}\x1a\x00SG\x16\x00([0-9a-f]{16})STARGZ", re.DOTALL)
_TOC_NAME = "stargz.index.json"
#: Files that only say what to fetch first; stargz-snapshotter does not show them.
_LANDMARKS = frozenset({".prefetch.landmark", ".no.prefetch.landmark"})
_POSITION = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18}):1\Z")
_TYPES = {
    "dir": stat.S_IFDIR,
    "reg": stat.S_IFREG,
    "hardlink": stat.S_IFREG,
    "symlink": stat.S_IFLNK,
    "char": stat.S_IFCHR,
    "block": stat.S_IFBLK,
    "fifo": stat.S_IFIFO,
}
#: Links to links that are followed to the file they are one with.
_MAX_LINKS = 40


class BadTable(IntegrityError):
    """A table of contents is not what the manifest names, or contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLayer:
    """A layer of others as EROFS takes it: its tree, and the device with its files' data.

    placed: in the order of the table; ``offset`` is on the device. An entry with an empty path is the root.
    block: bytes that every offset is a multiple of.
    """

    placed: tuple[Placed, ...]
    spans: SpanMap
    block: int = _BLOCK


def read_table(source: RangeTarget, blob: Descriptor) -> ForeignLayer:
    """The tree and the pieces of ``blob``, which ``has_table``: two ranged reads at the most.

    Raises:
        BadTable, BadSpans, UnsafePath: not what the manifest names, or nothing that can be read lazily.
    """
    where = f"{source.name}: {blob.digest}"
    if media_types.STARGZ_TOC_DIGEST in blob.annotations:
        (text, end), codec = _stargz_table(source, blob, where), "gzip"
    else:
        (text, end), codec = _chunked_table(source, blob, where), "zstd"
    return parse_table(text, codec=codec, blob_end=end, source=where)


def parse_table(text: bytes, *, codec: str, blob_end: int, source: str) -> ForeignLayer:
    """The tree and the pieces that the JSON ``text`` describes; the blob's last member ends at ``blob_end``.

    Raises:
        BadTable, BadSpans, UnsafePath: see ``read_table``.
    """
    try:
        value = json.loads(text)
        if value.get("version") != 1 or not isinstance(value["entries"], list):
            raise BadTable(f"{source}: table of contents: want version 1, got {str(value.get('version'))[:20]}")
        return _layer(value["entries"], codec, blob_end, source)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, EnvbuilderError):
            raise
        raise BadTable(f"{source}: table of contents: {type(error).__name__}: {error}"[:400]) from error


def _stargz_table(source: RangeTarget, blob: Descriptor, where: str) -> tuple[bytes, int]:
    footer = source.fetch_range(blob, max(0, blob.size - _FOOTER_SIZE), min(blob.size, _FOOTER_SIZE))
    match = _FOOTER.match(footer)
    offset = int(match[1], 16) if match else blob.size
    size = blob.size - _FOOTER_SIZE - offset
    if not 0 < size <= _MAX_STORED:
        raise BadTable(f"{where}: eStargz: its last {_FOOTER_SIZE} bytes name no table")
    stored = source.fetch_range(blob, offset, size)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(stored)) as unzipped:
            plain = unzipped.read(_MAX_JSON + 1)
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as tar:
            member = tar.next()
            inside = tar.extractfile(member) if member is not None and member.name == _TOC_NAME else None
            text = inside.read() if inside else b""
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise BadTable(f"{where}: eStargz: table of contents: {error}") from error
    want = blob.annotations[media_types.STARGZ_TOC_DIGEST]
    if str(Digest.of(text)) != want:
        raise BadTable(f"{where}: eStargz: table of contents: want {want[:100]}, got {Digest.of(text)}")
    return text, offset


def _chunked_table(source: RangeTarget, blob: Descriptor, where: str) -> tuple[bytes, int]:
    notes = chunked_notes(blob.annotations)
    match = _POSITION.match(notes[1]) if notes else None
    offset, stored_size, size = map(int, match.groups()) if match else (0, 0, 0)
    if not notes or not 0 < stored_size <= min(_MAX_STORED, blob.size - offset) or size > _MAX_JSON:
        raise BadTable(f"{where}: zstd:chunked: no table at {str(notes)[:200]}")
    stored = source.fetch_range(blob, offset, stored_size)
    if str(Digest.of(stored)) != notes[0]:
        raise BadTable(f"{where}: zstd:chunked: table of contents: want {notes[0][:100]}, got {Digest.of(stored)}")
    try:
        return zstandard.ZstdDecompressor().decompress(stored, max_output_size=size), offset
    except zstandard.ZstdError as error:
        raise BadTable(f"{where}: zstd:chunked: table of contents: {error}") from error


@dataclass(slots=True)
class _Data:
    """One piece of a file as the table has it, before it has a place on the device."""

    file: int
    within: int
    size: int
    member: int
    skip: int
    sha256: bytes


def _layer(entries: list[dict[str, Any]], codec: str, blob_end: int, source: str) -> ForeignLayer:
    placed: list[Placed] = []
    data: list[_Data] = []
    for entry in entries:
        kind = entry["type"]
        if kind == "chunk":
            if not data or data[-1].file != len(placed) - 1:
                raise BadTable(f"{source}: a chunk of no file: {str(entry.get('name'))[:200]!r}")
        else:
            found = _placed(entry, source)
            if found is None:
                continue
            placed.append(found)
        if kind in ("reg", "chunk") and placed[-1].size:
            data.append(_data(entry, len(placed) - 1, placed[-1].size, source))
    data = list(_filled(data, placed, source))
    # Files in the order of the blob: what is fetched together then lies together.
    order = {piece.file: number for number, piece in reversed(list(enumerate(data)))}
    at = 0
    for file in sorted(order, key=lambda number: (data[order[number]].member, data[order[number]].skip)):
        placed[file] = replace(placed[file], offset=at)
        at += -(-placed[file].size // _BLOCK) * _BLOCK
    pieces = sorted(
        (
            Piece(placed[each.file].offset + each.within, each.size, each.member, each.sha256, each.skip)
            for each in data
        ),
        key=lambda piece: piece.at,
    )
    if pieces:
        spans = span_map(codec, pieces, device_size=at, blob_end=blob_end)
    else:  # names only; a device has one block at least
        empty = Piece(0, _BLOCK, 0, hashlib.sha256(bytes(_BLOCK)).digest())
        spans = span_map("whole", [empty], device_size=_BLOCK, blob_end=blob_end)
    return ForeignLayer(placed=tuple(linked(placed, source)), spans=spans)


def _placed(entry: Mapping[str, Any], source: str) -> Placed | None:
    name, kind = str(entry["name"]), _TYPES[entry["type"]]
    if name.strip("/") in _LANDMARKS:
        return None
    path = "" if name.strip("/") in ("", ".") else entry_path(name, source=source)
    if not path and not stat.S_ISDIR(kind):
        raise BadTable(f"{source}: table of contents: the root is no directory")
    size = int(entry.get("size", 0)) if entry["type"] == "reg" else 0
    uid, gid, mode = int(entry.get("uid", 0)), int(entry.get("gid", 0)), int(entry.get("mode", 0))
    device = (int(entry.get("devMajor", 0)), int(entry.get("devMinor", 0)))
    if not (0 <= size < 1 << 44 and min(uid, gid, mode, *device) >= 0 and max(uid, gid, *device) < 1 << 32):
        raise BadTable(f"{source}: {path[:200]!r}: a size or an owner that no file has")
    xattrs = entry.get("xattrs") or {}
    return Placed(
        path=path,
        mode=kind | mode & 0o7777,
        uid=uid,
        gid=gid,
        size=size,
        link=_link(str(entry.get("linkName", "")), entry["type"], source),
        device=device if kind in (stat.S_IFCHR, stat.S_IFBLK) else (0, 0),
        xattrs=tuple(sorted((str(key), base64.b64decode(value, validate=True)) for key, value in xattrs.items())),
        mtime_s=_time(entry.get("modtime")),
    )


def _link(target: str, kind: str, source: str) -> str:
    if kind == "hardlink":
        return entry_path(target, source=source)
    if kind == "symlink":
        if not target or "\0" in target or len(target.encode("utf-8", "surrogateescape")) >= _BLOCK:
            raise BadTable(f"{source}: a symbolic link to {target[:200]!r}")
        return target
    return ""


def _time(text: object) -> int:
    """Seconds since the epoch of an RFC 3339 time; Go's zero time and what is before the epoch are 0."""
    if not isinstance(text, str) or not text:
        return 0
    whole = re.sub(r"\.[0-9]+", "", text).replace("Z", "+00:00")
    return min(max(0, int(datetime.fromisoformat(whole).timestamp())), (1 << 32) - 1)


def _data(entry: Mapping[str, Any], file: int, size: int, source: str) -> _Data:
    within = int(entry.get("chunkOffset", 0))
    count = int(entry.get("chunkSize", 0)) or size - within
    digest = entry.get("chunkDigest") or (entry.get("digest") if count == size else None)
    if not digest or not str(digest).startswith("sha256:"):
        raise BadTable(f"{source}: {str(entry['name'])[:200]!r}: its data have no digest")
    member, skip = int(entry["offset"]), int(entry.get("innerOffset", 0))
    if not 0 < count <= MAX_CHUNK_SIZE or not 0 <= member < 1 << 60 or not 0 <= skip <= MAX_CHUNK_SIZE:
        raise BadTable(
            f"{source}: {str(entry['name'])[:200]!r}: {count} bytes at {member}, want {MAX_CHUNK_SIZE} at most"
        )
    return _Data(file, within, count, member, skip, bytes.fromhex(Digest.parse(str(digest)).hex))


def _filled(data: list[_Data], placed: list[Placed], source: str) -> Iterator[_Data]:
    """``data``, of which the pieces of each file must be the whole file, in order."""
    at: dict[int, int] = {}
    for piece in data:
        if piece.within != at.get(piece.file, 0):
            raise BadTable(
                f"{source}: {placed[piece.file].path[:200]!r}: a piece is missing at {at.get(piece.file, 0)}"
            )
        at[piece.file] = piece.within + piece.size
        yield piece
    for number, each in enumerate(placed):
        if stat.S_ISREG(each.mode) and not each.link and each.size != at.get(number, 0):
            raise BadTable(
                f"{source}: {each.path[:200]!r}: want {each.size} bytes, its pieces have {at.get(number, 0)}"
            )


def linked(placed: list[Placed], source: str) -> Iterator[Placed]:
    """``placed``, hard links with what they link to: both names are one inode.

    Raises:
        BadTable: a link to nothing of this layer.
    """
    files = {each.path: each for each in placed if stat.S_ISREG(each.mode)}
    for each in placed:
        if not (stat.S_ISREG(each.mode) and each.link):
            yield each
            continue
        target, count = each, 0
        while target.link and count < _MAX_LINKS:
            count += 1
            if target.link not in files:
                raise BadTable(
                    f"{source}: {each.path[:200]!r}: a hard link to {target.link[:200]!r}, not of this layer"
                )
            target = files[target.link]
        if target.link:
            raise BadTable(f"{source}: {each.path[:200]!r}: hard links in a circle")
        yield replace(target, path=each.path, link=target.path)
