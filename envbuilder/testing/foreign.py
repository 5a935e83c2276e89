"""Layers as other tools write them, from one small tar: gzip, eStargz, zstd:chunked, and images of them.

The writers follow the two formats where readers may differ: several files in one gzip member, files in several
pieces, hard links, modes, times, extended attributes. What the real tools write is in tests/compat/mount.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import zstandard

from envbuilder.digest import Descriptor, Digest, describe
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.platform import Platform
from envbuilder.store.target import Target

_KINDS = {tarfile.DIRTYPE: "dir", tarfile.REGTYPE: "reg", tarfile.SYMTYPE: "symlink", tarfile.LNKTYPE: "hardlink"}
_XATTR = "SCHILY.xattr."
#: What is read besides a tar's last blocks.
_END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignBlob:
    """A layer's bytes, of which ``tar`` is what they unpack to, with the notes that its manifest has."""

    blob: bytes
    tar: bytes
    media_type: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptor(self) -> Descriptor:
        """As a manifest names it."""
        return Descriptor(
            media_type=self.media_type, digest=Digest.of(self.blob), size=len(self.blob), annotations=self.notes
        )


def member(name: str, data: bytes | None = None, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a tar: a file with ``data``, a directory without; ``fields`` are of ``tarfile.TarInfo``."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
    info.mode, info.size, info.mtime = 0o644 if data is not None else 0o755, len(data or b""), 1_700_000_000
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data or b""


def foreign_tar(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """The tar of ``members``."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def gzip_layer(tar: bytes) -> ForeignBlob:
    """A plain gzip layer, as most images have."""
    return ForeignBlob(blob=gzip.compress(tar, 6, mtime=0), tar=tar, media_type=media_types.OCI_LAYER_TAR_GZIP)


def stargz_layer(tar: bytes, *, piece: int = 100_000, packed: int = 0) -> ForeignBlob:
    """An eStargz layer with pieces of ``piece`` bytes; what is smaller than ``packed`` shares a gzip member."""
    out, plain, entries, member_at = bytearray(), bytearray(), [], 0
    pending = bytearray()

    def end_member() -> None:
        nonlocal member_at
        out.extend(gzip.compress(bytes(pending), 6, mtime=0))
        plain.extend(pending)
        pending.clear()
        member_at = len(out)

    for entry, header, data in _parts(tar, landmark=True):
        pending += header
        entries.append(entry)
        for number, start in enumerate(range(0, len(data), piece)):
            part = data[start : start + piece]
            if len(pending) >= packed:
                end_member()
            place: dict[str, Any] = {"offset": member_at, "chunkDigest": str(Digest.of(part))}
            if pending:
                place["innerOffset"] = len(pending)
            if len(data) > piece:
                place |= {"chunkOffset": start, "chunkSize": len(part)}
            if number:
                entries.append({"name": entry["name"], "type": "chunk", **place})
            else:
                entry.update(place)
            pending += part
        pending += bytes(-len(data) % tarfile.BLOCKSIZE)
    text = json.dumps({"version": 1, "entries": entries}).encode()
    end_member()
    table_at = len(out)
    table = foreign_tar([member("stargz.index.json", text)])
    out += gzip.compress(table, 6, mtime=0)
    plain += table
    extra = b"SG\x16\0" + b"%016xSTARGZ" % table_at
    out += b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + len(extra).to_bytes(2, "little") + extra
    out += b"\x01\0\0\xff\xff" + bytes(8)
    return ForeignBlob(
        blob=bytes(out),
        tar=bytes(plain),
        media_type=media_types.OCI_LAYER_TAR_GZIP,
        notes={media_types.STARGZ_TOC_DIGEST: str(Digest.of(text))},
    )


def chunked_layer(tar: bytes, *, piece: int = 100_000, prefix: str = media_types.ZSTD_CHUNKED[0]) -> ForeignBlob:
    """A zstd:chunked layer with pieces of ``piece`` bytes."""
    out, entries = bytearray(), []
    compress = zstandard.ZstdCompressor(level=3).compress
    for entry, header, data in _parts(tar, landmark=False):
        out += compress(header)
        entries.append(entry)
        if data:
            entry |= {"digest": str(Digest.of(data)), "offset": len(out)}
        for start in range(0, len(data), piece):
            part = data[start : start + piece]
            place: dict[str, Any] = {"offset": len(out), "chunkOffset": start, "chunkSize": len(part)}
            place["chunkDigest"] = str(Digest.of(part))
            if start:
                entries.append({"name": entry["name"], "type": "chunk", **place})
            elif len(data) > piece:
                entry.update(place)
            out += compress(part)
        if data:
            entry["endOffset"] = len(out)
            out += compress(bytes(-len(data) % tarfile.BLOCKSIZE))
    out += compress(_END)
    text = json.dumps({"version": 1, "entries": entries}).encode()
    table = compress(text)
    notes = {
        prefix + ".manifest-checksum": f"sha256:{hashlib.sha256(table).hexdigest()}",
        prefix + ".manifest-position": f"{len(out) + 8}:{len(table)}:{len(text)}:1",
    }
    out += b"\x50\x2a\x4d\x18" + len(table).to_bytes(4, "little") + table
    plain = zstandard.ZstdDecompressor().stream_reader(bytes(out), read_across_frames=True).read()
    return ForeignBlob(blob=bytes(out), tar=plain, media_type=media_types.OCI_LAYER_TAR_ZSTD, notes=notes)


def _parts(tar: bytes, *, landmark: bool) -> Iterator[tuple[dict[str, Any], bytes, bytes]]:
    """Of each entry: how a table has it, its headers, its data."""
    source = tarfile.open(fileobj=io.BytesIO(tar), mode="r:")  # noqa: SIM115 - of memory
    if landmark:
        info, data = member(".no.prefetch.landmark", b"\x0f")
        yield {"name": info.name, "type": "reg", "size": 1, "mode": info.mode}, info.tobuf(), data
    for info in source:
        data = tar[info.offset_data : info.offset_data + info.size] if info.isreg() else b""
        entry: dict[str, Any] = {
            "name": info.name,
            "type": _KINDS[info.type],
            "mode": info.mode,
            "uid": info.uid,
            "gid": info.gid,
            "modtime": "2023-11-14T22:13:20Z" if info.mtime == 1_700_000_000 else "0001-01-01T00:00:00Z",
        }
        if data:
            entry["size"] = len(data)
        if info.linkname:
            entry["linkName"] = info.linkname
        xattrs = {key.removeprefix(_XATTR): text for key, text in info.pax_headers.items() if key.startswith(_XATTR)}
        if xattrs:
            entry["xattrs"] = {key: base64.b64encode(text.encode()).decode() for key, text in xattrs.items()}
        yield entry, tar[info.offset : info.offset_data], data


def push_foreign(target: Target, layers: Sequence[ForeignBlob], *, tag: str = "", media_type: str = "") -> Descriptor:
    """Push an image of ``layers`` for x86_64 without any index; its plain manifest."""
    config = ImageConfig(platform=Platform("x86_64"), diff_ids=tuple(Digest.of(layer.tar) for layer in layers)).dump()
    manifest = Manifest(
        config=describe(config, media_types.OCI_CONFIG), layers=tuple(layer.descriptor for layer in layers)
    ).dump()
    root = describe(manifest, media_type or media_types.OCI_MANIFEST)
    contents = [(layer.descriptor, layer.blob) for layer in layers]
    for what, data in (*contents, (describe(config, media_types.OCI_CONFIG), config), (root, manifest)):
        target.push(what, partial(io.BytesIO, data))
    if tag:
        target.tag(root, tag)
    return root
