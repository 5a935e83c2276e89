"""A layer's tree and spans as two files, or as one artifact beside the layer in a registry.

Nothing in a plain gzip layer's image proves such an artifact: who believes one trusts whoever attached it to name
the right files, as he trusts the image (docs/decisions/0009-foreign-images.md).
Format: docs/formats/foreign-index.md.
"""

from __future__ import annotations

import io
import json
import logging
import stat
import struct
from functools import partial
from typing import Any

import zstandard

from envbuilder.digest import Descriptor, describe
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.layer.tree import Placed
from envbuilder.mount.foreign.spans import parse_spans
from envbuilder.mount.foreign.toc import ForeignLayer
from envbuilder.oci import media_types
from envbuilder.paths import entry_path
from envbuilder.store.referrers import attach, read_referrer, referrers
from envbuilder.store.target import RangeTarget, Target
from envbuilder.store.whole import fetch_whole

_log = logging.getLogger(__name__)

_FORMAT = 1
_HEAD = struct.Struct("<Q")
#: Bytes of an index, stored and unpacked: 64 GiB of tar at 16 KiB a checkpoint.
_MAX_STORED, _MAX_PLAIN = 1 << 30, 2 << 30
_KINDS = frozenset(
    {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO},
)


class BadLayerIndex(IntegrityError):
    """A tree of a layer is malformed, or of another format."""


def dump_layer(layer: ForeignLayer) -> tuple[bytes, bytes]:
    """Tree and spans, for ``parse_layer``."""
    value = {"format": _FORMAT, "block": layer.block, "placed": [_row(placed) for placed in layer.placed]}
    return json.dumps(value, separators=(",", ":")).encode(), layer.spans.dump()


def parse_layer(tree: bytes, spans: bytes | memoryview, *, blob_size: int, source: str) -> ForeignLayer:
    """What ``dump_layer`` gave, of a blob of ``blob_size`` bytes; trusts nothing.

    Raises:
        BadLayerIndex, BadSpans, UnsafePath: it is something else.
    """
    table = parse_spans(spans, blob_size=blob_size, source=source)
    try:
        value = json.loads(tree)
        if value["format"] != _FORMAT or value["block"] not in (512, 4096):
            raise BadLayerIndex(f"{source}: want a tree of format {_FORMAT}")
        placed = tuple(_placed(row, source) for row in value["placed"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadLayerIndex(f"{source}: {type(error).__name__}: {error}"[:400]) from error
    for each in placed:
        if each.offset % value["block"] or (each.size and each.offset + each.size > table.size):
            raise BadLayerIndex(f"{source}: {each.path[:200]!r} lies outside its device")
    return ForeignLayer(placed=placed, spans=table, block=value["block"])


def attach_layer_index(target: Target, layer: Descriptor, made: ForeignLayer) -> Descriptor:
    """Store how ``layer``, which ``target`` has, can be read by ranges beside it; the artifact as listed.

    Raises:
        NotFound, ReferrersTagTaken, ReferrersContended: see ``attach``.
    """
    names, table = dump_layer(made)
    stored = zstandard.ZstdCompressor(level=9, write_content_size=True).compress(_HEAD.pack(len(names)) + names + table)
    blob = describe(stored, media_types.FOREIGN_INDEX)
    return attach(target, layer, media_types.FOREIGN_INDEX_ARTIFACT, [(blob, partial(io.BytesIO, stored))])


def find_layer_index(source: RangeTarget, layer: Descriptor) -> ForeignLayer | None:
    """The first index beside ``layer`` that can be read; None when there is none."""
    where = f"{source.name}: layer {layer.digest}"
    try:
        for listed in referrers(source, layer, media_types.FOREIGN_INDEX_ARTIFACT):
            blob = read_referrer(source, listed, layer).layers[0]
            return _parse(fetch_whole(source, blob, _MAX_STORED, BadLayerIndex), layer, where)
    except (IntegrityError, IndexError) as error:
        _log.warning("%s: its index is not used: %s", where, error)
    except EnvbuilderError as error:
        _log.info("%s: no index: %s", where, error)
    return None


def _parse(stored: bytes, layer: Descriptor, where: str) -> ForeignLayer:
    try:
        size = zstandard.get_frame_parameters(stored).content_size
        if not _HEAD.size <= size <= _MAX_PLAIN:
            raise BadLayerIndex(f"{where}: an index that unpacks to {size} bytes")
        plain = memoryview(zstandard.ZstdDecompressor().decompress(stored, max_output_size=size))
    except zstandard.ZstdError as error:
        raise BadLayerIndex(f"{where}: {error}") from error
    names = _HEAD.size + _HEAD.unpack_from(plain)[0]
    return parse_layer(bytes(plain[_HEAD.size : names]), plain[names:], blob_size=layer.size, source=where)


def _row(placed: Placed) -> list[Any]:
    xattrs = [[name, value.hex()] for name, value in placed.xattrs]
    return [
        *(placed.path, placed.mode, placed.uid, placed.gid, placed.size, placed.offset, placed.link),
        *(placed.mtime_s, list(placed.device), xattrs),
    ]


def _placed(row: list[Any], source: str) -> Placed:
    path, mode, uid, gid, size, offset, link, mtime_s, device, xattrs = row
    if (path and entry_path(path, source=source) != path) or mode & ~0o7777 not in _KINDS:
        raise BadLayerIndex(f"{source}: {str(path)[:200]!r} of mode {mode}")
    if not all(
        isinstance(number, int) and 0 <= number < 1 << 44 for number in (size, offset, uid, gid, mtime_s, *device)
    ):
        raise BadLayerIndex(f"{source}: {path[:200]!r}: a number that no file has")
    return Placed(
        path=path,
        mode=mode,
        uid=uid,
        gid=gid,
        size=size,
        offset=offset,
        link=str(link),
        mtime_s=mtime_s,
        device=(device[0], device[1]),
        xattrs=tuple((str(name), bytes.fromhex(value)) for name, value in xattrs),
    )
