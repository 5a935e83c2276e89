"""A layer without a table of contents, pulled once: its tar becomes a whole device, with checkpoints for later.

A gzip layer gets a checkpoint every MiB (the library indexed-gzip finds them) with the SHA-256 of what follows: when
its chunks are gone from this node, or on another node that believes this table, ranges of it are enough. Plain
tars are read by ranges as they are; a zstd layer of one frame cannot be, and is pulled again.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, Readable, verifying
from envbuilder.errors import HostError
from envbuilder.image.plain import plain_tar, proved
from envbuilder.layer.chunks import MAX_CHUNK_SIZE
from envbuilder.layer.foreign_tar import BadLayer, each_member, open_members, placed_of
from envbuilder.layer.tree import Placed
from envbuilder.mount.foreign.members import Member
from envbuilder.mount.foreign.spans import Piece, span_map
from envbuilder.mount.foreign.toc import ForeignLayer, linked
from envbuilder.store.target import Target

#: Uncompressed bytes between checkpoints: each costs up to 32 KiB, some 10 KiB compressed, and every miss reads one
#: span (docs/decisions/0009-foreign-images.md).
SPACING = 1 << 20
#: Bytes of a tar's blocks, to which its files' data are aligned.
TAR_BLOCK = 512
_GZIP = b"\x1f\x8b"
#: indexed_gzip's export: magic, version, flags, sizes of blob and data, spacing, bytes of a window, points; then of
#: each point its place in blob and data, bits, and whether it has a window; then the windows (zran.c 1.10).
_EXPORT = struct.Struct("<5sBBQQIII")
_POINT = struct.Struct("<QQBB")


class NoGzipIndex(HostError):
    """The library that finds checkpoints is not installed."""

    hint = "Install envbuilder with its extra gzip."


def pull_layer(
    source: Target, layer: Descriptor, diff_id: Digest, data: Path, progress: Callable[[int], None]
) -> ForeignLayer:
    """Write the tar of ``layer`` to ``data``, a file of ours, and tell how it can be read by ranges.

    progress: told of bytes as they are fetched. The spans of a layer that cannot be read by ranges are none.

    Raises:
        DigestMismatch, BadLayer, BadTable, UnsafePath: not the layer that the image names, or one that only
            unpacking can show. OSError: no room. UnavailableError: as any reading.
    """
    name = f"{source.name}: layer {layer.digest}"
    blob = data.with_suffix(".blob")
    try:
        with source.fetch(layer) as stored, blob.open("wb") as out:
            checked = verifying(stored, layer, source=source.name)
            while block := checked.read(BLOCK_SIZE):
                out.write(block)
                progress(len(block))
        with blob.open("rb") as stored:
            first = stored.read(4)
            stored.seek(0)
            points: list[tuple[int, int, bytes]] = []
            if first.startswith(_GZIP):
                size = _write_gzip(stored, data, layer, diff_id, name, points)
            else:
                with plain_tar(stored) as plain:
                    size = _write(plain, data, layer, diff_id, name)
            codec = "deflate" if points else "plain" if size == layer.size else "whole"
        os.truncate(data, -(-size // TAR_BLOCK) * TAR_BLOCK)
        if codec == "plain":
            points = [(at, at, b"") for at in range(0, size, SPACING)]
        elif codec == "whole":
            points = [(number, at, b"") for number, at in enumerate(range(0, size, SPACING))]
        with data.open("rb") as tar:
            placed = tuple(linked(list(_scan(tar, name)), name))
            pieces = list(_pieces(tar, points, size))
        spans = span_map(codec, pieces, device_size=data.stat().st_size, blob_end=layer.size)
        return ForeignLayer(placed=placed, spans=spans, block=TAR_BLOCK)
    finally:
        blob.unlink(missing_ok=True)


def _write(plain: Readable, data: Path, layer: Descriptor, diff_id: Digest, name: str) -> int:
    """Bytes of the tar, written to ``data`` and proved to be the image's."""
    with proved(plain, layer, diff_id, name) as tar, data.open("wb") as out:
        shutil.copyfileobj(cast("BinaryIO", tar), out, BLOCK_SIZE)
        return out.tell()


def _write_gzip(
    stored: BinaryIO, data: Path, layer: Descriptor, diff_id: Digest, name: str, points: list[tuple[int, int, bytes]]
) -> int:
    """The same for a gzip layer; ``points`` gets the checkpoints: place in the blob, in the tar, ``Member``."""
    try:
        import indexed_gzip  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise NoGzipIndex(f"{name}: gzip layers are read lazily with indexed-gzip, which is not here") from error
    try:
        with indexed_gzip.IndexedGzipFile(fileobj=stored, spacing=SPACING, drop_handles=False) as unzipped:
            size = _write(unzipped, data, layer, diff_id, name)
            points += _points(_exported(unzipped), stored)
            starts = [offset for _, offset, _ in points]
            if not starts or any(end - start > MAX_CHUNK_SIZE for start, end in pairwise([*starts, size])):
                # Reading alone makes none in what is small as stored.
                unzipped.build_full_index()
                points[:] = _points(_exported(unzipped), stored)
    except (indexed_gzip.ZranError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise BadLayer(f"{name}: {error}") from error
    return size


def _exported(unzipped: Any) -> bytes:
    out = io.BytesIO()
    unzipped.export_index(fileobj=out)
    return out.getvalue()


def _points(exported: bytes, stored: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    *_, size, _, window_size, count = _EXPORT.unpack_from(exported)
    at = _EXPORT.size + count * _POINT.size
    for number in range(count):
        where, offset, bits, has_window = _POINT.unpack_from(exported, _EXPORT.size + number * _POINT.size)
        window = exported[at : at + window_size] if has_window else b""
        at += len(window)
        if offset >= size:
            continue
        stored.seek(max(where - 1, 0))
        first = stored.read(1)[0] if bits else 0
        yield where, offset, Member(bits, first, window).dump()


def _pieces(tar: BinaryIO, points: list[tuple[int, int, bytes]], size: int) -> Iterator[Piece]:
    tar.seek(0)
    ends = [offset for _, offset, _ in points[1:]] + [size]
    for (where, offset, member), end in zip(points, ends, strict=True):
        checksum = hashlib.sha256(tar.read(end - offset)).digest()
        if end > offset:
            yield Piece(offset, end - offset, where, checksum, 0, member)


def _scan(tar: BinaryIO, source: str) -> Iterator[Placed]:
    """What is in the tar, and where: headers only are read."""
    tar.seek(0)
    with open_members(tar, source) as members:
        for info in each_member(members, source):
            yield placed_of(info, source)
