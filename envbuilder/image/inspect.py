"""Read an image back from a target: the manifests of one platform, its config, how it can be started.

Everything here may come from anyone: sizes are capped before a byte is read, digests are checked
before anything is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import zstandard

from envbuilder.digest import Descriptor, Digest, InvalidDigest
from envbuilder.image.choice import BrokenImage, NoSuchPlatform, choose, no_image, read_document
from envbuilder.layer.chunks import ChunkIndex, index_range, open_index
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig, parse_config
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.platform import Platform
from envbuilder.store.target import NotFound, RangeTarget, Target
from envbuilder.store.whole import fetch_whole

#: Bytes of a config; Docker Hub's largest are some hundred KiB.
MAX_CONFIG_SIZE = 8 << 20
#: Bytes of EROFS metadata, stored and as mounted: some 4 million inodes. The kernel parses it as root.
MAX_METADATA_SIZE = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyImage:
    """What a lazy start needs: the EROFS metadata, and the blobs whose uncompressed bytes are its devices."""

    manifest: Manifest
    descriptor: Descriptor
    metadata: Descriptor
    metadata_digest: Digest  # of the uncompressed metadata
    devices: tuple[Descriptor, ...]  # in the order of ``device=``

    def shows(self, plain: Manifest) -> bool:
        """Whether its devices are the layers of ``plain``, or devices of them."""
        shown = [device.annotations.get(media_types.DEVICE_OF, str(device.digest)) for device in self.devices]
        return shown == [str(layer.digest) for layer in plain.layers]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenImage:
    """One platform's image, read and checked.

    root: what was asked for, an index or a manifest. descriptor: of ``manifest``.
    lazy: None when the image has no EROFS manifest.
    """

    root: Descriptor
    descriptor: Descriptor
    manifest: Manifest
    config: ImageConfig
    annotations: Mapping[str, str] = field(hash=False)  # of the root
    lazy: LazyImage | None


def open_image(
    target: Target,
    what: Descriptor,
    platform: Platform,
    *,
    chosen: Callable[[Descriptor], None] | None = None,
    found: Callable[[LazyImage], None] | None = None,
) -> OpenImage:
    """The image ``what`` of ``target`` for ``platform``.

    chosen: told which plain manifest it is as soon as that is known, so that more can be looked for meanwhile.
    found: told the same of what a lazy start needs.

    Raises:
        NotFound, DigestMismatch: from the target. InvalidJson, InvalidDigest: not an image.
        NoSuchPlatform: an index without this platform, or an artefact. BrokenImage: see there.
    """
    document = read_document(target, what)
    if isinstance(document, Manifest) and document.config.media_type == media_types.OCI_EMPTY:
        raise no_image(target, what, document, platform)
    plain, erofs = (what, None) if isinstance(document, Manifest) else choose(target, what, document, platform)
    if chosen is not None:
        chosen(plain)
    # Two round trips at a time: a registry may be far away.
    with ThreadPoolExecutor(1, "manifest") as beside:
        other = beside.submit(_manifest, target, erofs) if erofs else None
        manifest = document if isinstance(document, Manifest) else _manifest(target, plain)
        lazy = _lazy(target, erofs, other.result(), manifest) if erofs and other else None
        if isinstance(document, Manifest) and (twin := lazy_twin(target, manifest)):
            lazy = twin if twin.shows(manifest) else None
        if lazy is not None and found is not None:
            found(lazy)
        config = _config(target, manifest, platform)
    return OpenImage(
        root=what,
        descriptor=plain,
        manifest=manifest,
        config=config,
        annotations=document.annotations,
        lazy=lazy,
    )


def fetch_metadata(target: Target, lazy: LazyImage) -> bytes:
    """The EROFS image to mount, uncompressed and verified.

    Raises:
        BrokenImage: too large, not zstd, or not the bytes that the manifest names.
    """
    source = f"{target.name}: {lazy.metadata.digest}"
    stored = _fetch(target, lazy.metadata, MAX_METADATA_SIZE)
    if lazy.metadata.media_type == media_types.EROFS_LAYER:
        # Kept under this name on the node, where other images may look for it.
        if lazy.metadata_digest != lazy.metadata.digest:
            raise BrokenImage(f"{source}: EROFS metadata: want {lazy.metadata_digest}, got {lazy.metadata.digest}")
        return stored
    try:
        size = zstandard.get_frame_parameters(stored).content_size
        if size > MAX_METADATA_SIZE:
            raise BrokenImage(f"{source}: EROFS metadata: want at most {MAX_METADATA_SIZE} bytes, got {size}")
        data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BrokenImage(f"{source}: EROFS metadata: {error}") from error
    if Digest.of(data) != lazy.metadata_digest:
        raise BrokenImage(f"{source}: EROFS metadata: want {lazy.metadata_digest}, got {Digest.of(data)}")
    return data


def fetch_index(target: RangeTarget, blob: Descriptor) -> ChunkIndex:
    """The chunk index of a layer's blob, by one ranged read of its end.

    Raises:
        CorruptChunkIndex, UnknownChunkIndex: see layer/chunks.py; BrokenImage: the blob has none.
    """
    source = f"{target.name}: {blob.digest}"
    where = index_range(blob, source=source)
    if where is None:
        raise BrokenImage(f"{source}: has no chunk index")
    return open_index(blob, target.fetch_range(blob, where[0], where[1] - where[0]), source=source)


def _fetch(target: Target, what: Descriptor, most: int) -> bytes:
    return fetch_whole(target, what, most, BrokenImage)


def _manifest(target: Target, what: Descriptor) -> Manifest:
    document = read_document(target, what)
    if not isinstance(document, Manifest):
        raise BrokenImage(f"{target.name}: {what.digest}: want an image manifest, got an index inside an index")
    return document


def _config(target: Target, manifest: Manifest, platform: Platform) -> ImageConfig:
    source = f"{target.name}: {manifest.config.digest}"
    config = parse_config(_fetch(target, manifest.config, MAX_CONFIG_SIZE), source=source)
    if config.platform != platform:
        raise NoSuchPlatform(f"{source}: want an image for {platform}, got {config.platform}")
    if len(config.diff_ids) != len(manifest.layers):
        raise BrokenImage(f"{source}: {len(manifest.layers)} layers, but {len(config.diff_ids)} diff_ids")
    return config


def lazy_twin(target: Target, plain: Manifest) -> LazyImage | None:
    """The EROFS manifest that ``plain`` itself names; None: it names none, or ``target`` has not got it.

    It need not be of the same layers: a builder that lays more over an image keeps what its manifest said.

    Raises:
        DigestMismatch, UnavailableError, ...: as any reading. BrokenImage: it is no manifest.
    """
    digest, _, size = plain.annotations.get(media_types.EROFS_MANIFEST, "").partition(" ")
    try:
        what = Descriptor(media_type=media_types.OCI_MANIFEST, digest=Digest.parse(digest), size=int(size))
        return _shaped(what, _manifest(target, what))
    except (InvalidDigest, ValueError, NotFound):
        return None


def _lazy(target: Target, what: Descriptor, manifest: Manifest, plain: Manifest) -> LazyImage | None:
    """The EROFS manifest of an index, if we can start it.

    It must have the layers of the plain one, or devices of them, or the two would be two images under one name. That a
    device has the files of its layer is for ``verify`` to say, as that the metadata have their names.
    """
    lazy = _shaped(what, manifest)
    if lazy and not lazy.shows(plain):
        raise BrokenImage(f"{target.name}: {what.digest}: its devices are not the layers of the plain manifest")
    return lazy


def _shaped(what: Descriptor, manifest: Manifest) -> LazyImage | None:
    """An EROFS manifest of the shape that we start: all layers devices, then one metadata layer."""
    *devices, metadata = manifest.layers or (what,)
    roles = {device.annotations.get(media_types.EROFS_ROLE) for device in devices}
    known = {media_types.EROFS_LAYER, media_types.EROFS_LAYER_ZSTD}
    if roles != {media_types.EROFS_ROLE_DEVICE} or metadata.media_type not in known:
        return None
    digest = metadata.annotations.get(media_types.EROFS_UNCOMPRESSED_DIGEST) or str(metadata.digest)
    return LazyImage(
        manifest=manifest,
        descriptor=what,
        metadata=metadata,
        metadata_digest=Digest.parse(digest),
        devices=tuple(devices),
    )
