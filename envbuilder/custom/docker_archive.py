"""The archive that ``docker save`` writes and ``docker load`` reads (docker-archive, image specification 1.2).

Docker before 25 reads nothing else, and no zstd in it: layers are written as plain tars, named by their diff_id.
Read in place, an archive is a Target with one OCI manifest for each of its images.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
import weakref
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuilder.digest import (
    BLOCK_SIZE,
    Descriptor,
    Digest,
    canonical_json,
    parse_json_object,
    verifying,
)
from envbuilder.image.inspect import OpenImage
from envbuilder.image.plain import plain_tar, proved
from envbuilder.oci import media_types
from envbuilder.oci.config import parse_config
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.store.archive import ReadOnlyTarget
from envbuilder.store.files import disk_errors
from envbuilder.store.target import NotFound, Opener, ShortRange, Target
from envbuilder.store.tarscan import BadArchive, Extent, ExtentReader, scan

_LIST = "manifest.json"
#: Docker 25 and later write an OCI layout around it: every path is a blob's, and with containerd's image store (the
#: default of 29) layers are as they were pulled, compressed.
_LAYOUT_LIST = "index.json"
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
_COMPRESSED = (
    (b"\x1f\x8b", media_types.OCI_LAYER_TAR_GZIP),
    (b"\x28\xb5\x2f\xfd", media_types.OCI_LAYER_TAR_ZSTD),
)
#: Manifests of a layout that are looked through for one image.
_MAX_MANIFESTS = 200
_PAD = 512
#: All that a docker-archive may name; links in it are not followed.
_WANTED = re.compile(r"(?!/)(?!.*\.\.)[\w./:-]{1,300}")


def write_docker_archive(
    source: Target, image: OpenImage, name: str, *, spool: Path, present: Container[Digest] = frozenset()
) -> Iterator[bytes]:
    """Give the bytes of a docker-archive with ``image`` as ``name`` (``NAME:TAG``), block by block.

    One layer at a time lies uncompressed in ``spool``, because its size stands before it. ``present``: diff_ids of
    layers that the reader has below the same parents, and that are left out.

    Raises:
        DigestMismatch, BadArchive: a layer is not what its config says.
    """
    with source.fetch(image.manifest.config) as stream:
        config = stream.read()
    config_name = f"{image.manifest.config.digest.hex}.json"
    names = [f"{diff_id.hex}.tar" for diff_id in image.config.diff_ids]
    written: set[Digest] = set()
    for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
        if diff_id in present or diff_id in written:
            continue
        written.add(diff_id)
        with tempfile.TemporaryFile(dir=spool) as plain:
            size = _spool(source, layer, diff_id, plain, spool)
            yield _header(f"{diff_id.hex}.tar", size)
            plain.seek(0)
            while block := plain.read(BLOCK_SIZE):
                yield block
            yield bytes(-size % _PAD)
    listing = [{"Config": config_name, "RepoTags": [name], "Layers": names}]
    for member, data in ((config_name, config), (_LIST, canonical_json(listing))):
        yield _header(member, len(data)) + data + bytes(-len(data) % _PAD)
    yield bytes(2 * _PAD)


def _spool(source: Target, layer: Descriptor, diff_id: Digest, out: Any, spool: Path) -> int:
    name = f"{source.name}: layer {layer.digest}"
    size = 0
    with (
        source.fetch(layer) as stored,
        plain_tar(stored) as plain,
        proved(plain, layer, diff_id, name) as tar,
    ):
        while block := tar.read(BLOCK_SIZE):
            size += len(block)
            with disk_errors(spool):
                out.write(block)
        while stored.read(BLOCK_SIZE):  # what is left is verified too
            pass
    return size


class DockerArchiveTarget:
    """What ``docker save`` wrote, in the file ``fd``, which it closes: a RangeTarget that is read only. Thread-safe.

    Layers and configs stand under the digests of their bytes; the manifests are made here and plain OCI.

    Raises:
        BadArchive: it is none.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        weakref.finalize(self, os.close, fd)
        self._files = scan(fd, _WANTED, source=name)
        self._extents: dict[Digest, Extent] = {}
        self._manifests: dict[Digest, bytes] = {}
        self._tags: dict[str, Descriptor] = {}
        self.only: Descriptor | None = None
        try:
            # A list, read by the strict reader of objects.
            listing = parse_json_object(b'{"images":' + self._small(_LIST) + b"}", source=f"{name}: {_LIST}")
            for image in listing["images"]:
                self._add(image)
        except (KeyError, TypeError) as error:
            raise BadArchive(f"{name}: {_LIST}: want Config and Layers of each image, got none") from error
        if not self._manifests:
            raise BadArchive(f"{name}: want at least one image, got none")

    def _add(self, image: Any) -> None:
        config = self._small(image["Config"])
        config_digest = Digest.of(config)
        parsed = parse_config(config, source=f"{self._name}: {image['Config']}")
        paths = list(image["Layers"])
        if len(paths) != len(parsed.diff_ids):
            raise BadArchive(f"{self._name}: want {len(parsed.diff_ids)} layers, got {len(paths)}")
        self._extents[config_digest] = self._files[str(image["Config"]).removeprefix("./")]
        layers = tuple(
            self._layer(diff_id, str(path).removeprefix("./"))
            for diff_id, path in zip(parsed.diff_ids, paths, strict=True)
        )
        what_config = Descriptor(media_type=media_types.OCI_CONFIG, digest=config_digest, size=len(config))
        data = self._stored(what_config, layers) or Manifest(config=what_config, layers=layers).dump()
        digest = Digest.of(data)
        what = Descriptor(media_type=media_types.OCI_MANIFEST, digest=digest, size=len(data))
        self._manifests[digest] = data
        self.only = what if len(self._manifests) == 1 else None
        for tag in image.get("RepoTags") or ():
            self._tags[str(tag)] = what

    def _layer(self, diff_id: Digest, path: str) -> Descriptor:
        blob = _BLOB.fullmatch(path)
        digest = Digest(f"sha256:{blob[1]}") if blob else diff_id
        # A layer that stands twice is a link the second time; by its digest it is the first one.
        extent = self._files.get(path) or self._extents.get(digest)
        if extent is None:
            raise BadArchive(f"{self._name}: no layer {diff_id}")
        self._extents[digest] = extent
        start = os.pread(self._fd, min(4, extent.size), extent.offset)
        media_type = next((kind for magic, kind in _COMPRESSED if start.startswith(magic)), media_types.OCI_LAYER_TAR)
        return Descriptor(media_type=media_type, digest=digest, size=extent.size)

    def _stored(self, config: Descriptor, layers: tuple[Descriptor, ...]) -> bytes | None:
        """The manifest that the archive itself has for this image (Docker 25 and later): its digest is the image's."""
        left = [_LAYOUT_LIST] if _LAYOUT_LIST in self._files else []
        for path in left:
            if path not in self._files:
                continue  # of a platform that was not saved
            document = parse_document(data := self._small(path), source=f"{self._name}: {path}")
            if isinstance(document, Index):
                room = max(0, _MAX_MANIFESTS - len(left))
                left += [f"blobs/sha256/{each.digest.hex}" for each in document.manifests[:room]]
            elif [document.config.digest, *(each.digest for each in document.layers)] == [
                config.digest,
                *(each.digest for each in layers),
            ]:
                return data
        return None

    @property
    def name(self) -> str:
        return self._name

    def has(self, what: Descriptor) -> bool:
        if data := self._manifests.get(what.digest):
            return len(data) == what.size
        extent = self._extents.get(what.digest)
        return extent is not None and extent.size == what.size

    def fetch(self, what: Descriptor) -> BinaryIO:
        self._need(what)
        data = self._manifests.get(what.digest)
        stream = (
            io.BytesIO(data) if data else cast("BinaryIO", ExtentReader(self, self._fd, self._extents[what.digest]))
        )
        return verifying(stream, what, source=f"{self.name}: {what.digest}")

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        self._need(what)
        if offset < 0 or size < 0 or offset + size > what.size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, it has {what.size}")
        if data := self._manifests.get(what.digest):
            return data[offset : offset + size]
        return os.pread(self._fd, size, self._extents[what.digest].offset + offset)

    def lookup(self, tag: str) -> Descriptor:
        """``tag`` is a digest, a whole ``NAME:TAG``, or "" for the only image."""
        if tag.startswith("sha256:") and (data := self._manifests.get(Digest.parse(tag))):
            return Descriptor(media_type=media_types.OCI_MANIFEST, digest=Digest.of(data), size=len(data))
        found = self._tags.get(tag) or (None if tag else self.only)
        if found is None:
            raise NotFound(
                f"{self.name}: no image {tag!r}", hint="It has: " + (", ".join(sorted(self._tags)) or "none.")
            )
        return found

    def push(self, what: Descriptor, content: Opener) -> None:
        del content
        raise ReadOnlyTarget(f"{self.name}: cannot add {what.digest}", hint="Write another archive.")

    def tag(self, what: Descriptor, tag: str) -> None:
        raise ReadOnlyTarget(f"{self.name}: cannot tag {what.digest} as {tag}", hint="Write another archive.")

    def _need(self, what: Descriptor) -> None:
        if not self.has(what):
            raise NotFound(f"{self.name}: no {what.digest} of {what.size} bytes")

    def _small(self, path: Any) -> bytes:
        extent = self._files.get(path.removeprefix("./")) if isinstance(path, str) else None
        if extent is None or extent.size > MAX_MANIFEST_SIZE:
            raise BadArchive(f"{self._name}: want a file {path!r:.100} of at most {MAX_MANIFEST_SIZE} bytes, got none")
        return os.pread(self._fd, extent.size, extent.offset)


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o644, 1
    return member.tobuf(tarfile.PAX_FORMAT)
