"""A built layer as bytes: what the store remembers under its plan key, paths included.

With it an unchanged layer is never opened again: the merged EROFS metadata and the
computed layer are made from the paths alone.
"""

from __future__ import annotations

import json
from typing import Any

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import EnvbuilderError
from envbuilder.layer.model import Layer, Theirs
from envbuilder.layer.tree import SOURCE_EPOCH_S, Placed

#: Raised when the meaning of a field changes: an older record is then made anew.
_FORMAT = 5

#: What stands before the paths, the last field.
_PATHS = b',"placed":'


def dump_layer(layer: Layer) -> bytes:
    """``layer`` as JSON; one row a path."""
    return json.dumps(
        {
            "format": _FORMAT,
            "id": layer.id,
            "blob": layer.blob.to_json(),
            "diff_id": str(layer.diff_id),
            "plan_key": str(layer.plan_key),
            "tar_size": layer.tar_size,
            **({"theirs": _theirs_row(layer.theirs)} if layer.theirs else {}),
            "placed": [_row(placed) for placed in layer.placed],
        },
        separators=(",", ":"),
    ).encode()


def load_blobs(data: bytes, *, key: Digest) -> tuple[Descriptor, ...]:
    """The blob of the layer in ``data``, and for a layer of others what it is the device of; () as None there.

    The paths, which are all but 1 kB of it, are not parsed.
    """
    try:
        value = json.loads(data.partition(_PATHS)[0] + b"}")
        if not _is_of(value, key):
            return ()
        theirs = _theirs(value.get("theirs"))
        return (Descriptor.from_json(value["blob"]), *([theirs.blob] if theirs else []))
    except (ValueError, KeyError, TypeError, EnvbuilderError):
        return ()


def load_blob(data: bytes, *, key: Digest) -> Descriptor | None:
    """The first of ``load_blobs``."""
    return next(iter(load_blobs(data, key=key)), None)


def load_layer(data: bytes, *, key: Digest) -> Layer | None:
    """The layer in ``data``, or None when it is of another format or another key: it is then built again."""
    try:
        value = json.loads(data)
        if not _is_of(value, key):
            return None
        return Layer(
            id=value["id"],
            blob=Descriptor.from_json(value["blob"]),
            diff_id=Digest.parse(value["diff_id"]),
            plan_key=key,
            tar_size=value["tar_size"],
            theirs=_theirs(value.get("theirs")),
            placed=tuple(_placed(row) for row in value["placed"]),
        )
    except (ValueError, KeyError, TypeError, IndexError, EnvbuilderError):
        return None


def without_id(data: bytes) -> bytes:
    """The record ``data`` without the name that one of the environments has for the layer.

    Raises:
        ValueError, KeyError: it is none.
    """
    head, _, paths = data.partition(_PATHS)
    value = {**json.loads(head + b"}"), "id": ""}
    return json.dumps(value, separators=(",", ":")).encode()[:-1] + _PATHS + paths


def _is_of(value: Any, key: Digest) -> bool:
    return bool(value["format"] == _FORMAT and value["plan_key"] == str(key))


def _theirs_row(theirs: Theirs) -> dict[str, Any]:
    return {"blob": theirs.blob.to_json(), "diff_id": str(theirs.diff_id), "by": theirs.by}


def _theirs(value: Any) -> Theirs | None:
    if value is None:
        return None
    blob, diff_id = Descriptor.from_json(value["blob"]), Digest.parse(value["diff_id"])
    return Theirs(blob=blob, diff_id=diff_id, by=value["by"])


def _row(placed: Placed) -> list[Any]:
    row: list[Any] = [placed.path, placed.mode, placed.uid, placed.gid, placed.size, placed.offset, placed.link]
    timed = placed.mtime_s != SOURCE_EPOCH_S  # of layers of others
    if placed.soname or placed.elf_flags or placed.xattrs or placed.tail or placed.device != (0, 0) or timed:
        xattrs = [[name, value.hex()] for name, value in placed.xattrs]
        row += [placed.soname, placed.elf_flags, list(placed.device), xattrs, placed.tail.hex()]
        row += [placed.mtime_s] if timed else []
    return row


def _placed(row: list[Any]) -> Placed:
    path, mode, uid, gid, size, offset, link, *rest = row
    soname, elf_flags, device, xattrs, tail, *times = rest or ("", 0, (0, 0), (), "")
    return Placed(
        path=path,
        mode=mode,
        uid=uid,
        gid=gid,
        size=size,
        offset=offset,
        link=link,
        soname=soname,
        elf_flags=elf_flags,
        device=(device[0], device[1]),
        xattrs=tuple((name, bytes.fromhex(value)) for name, value in xattrs),
        tail=bytes.fromhex(tail),
        mtime_s=times[0] if times else SOURCE_EPOCH_S,
    )
