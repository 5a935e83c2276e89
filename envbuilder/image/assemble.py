"""Layers become an image: two manifests over one set of data blobs, under one index. Pure.

The plain manifest stands first and is what every runtime starts. The second has the same layers
as EROFS devices and, last, the merged metadata that a lazy start mounts (decision 4; draft EROFS
image spec 640fd6a5: 2.4, 3.8, 5.4 and 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import zstandard

from envbuilder.digest import Descriptor, Digest, describe
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.model import Layer
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.oci.platform import Platform

#: Name of the rules by which layers become documents: raise the number when any byte of them would change.
IMAGE_WRITER = "image/2"
#: zstd level of the metadata blob: 19 is a fifth smaller and takes 13 times as long, 2 s for 100,000 inodes.
METADATA_LEVEL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An assembled image; the bytes are the truth, the descriptors name them.

    descriptor: of the index: the image's digest. manifest, erofs_manifest: of its two manifests.
    metadata: of the merged EROFS metadata, the last layer of ``erofs_manifest``.
    layers: base first; their bytes are in a Target already.
    blobs: everything else of the image, children before parents, the index last.
    """

    descriptor: Descriptor
    manifest: Descriptor
    erofs_manifest: Descriptor
    metadata: Descriptor
    layers: tuple[Layer, ...]
    blobs: Mapping[Descriptor, bytes] = field(hash=False)


def assemble(
    *,
    platform: Platform,
    layers: Sequence[Layer],
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
    command: Sequence[str] = (),
    working_dir: str = "/",
    user: str = "",
    annotations: Mapping[str, str] | None = None,
    lock_digest: Digest | None = None,
    spec_digest: Digest | None = None,
) -> Image:
    """The image of ``layers``, base first. Same arguments, same bytes.

    annotations: of the index and of both manifests; the lock's and the spec's digest are added.

    Raises:
        ImageTooLarge, UnsupportedXattr: the layers cannot be one EROFS image.
    """
    notes = dict(annotations or {})
    if lock_digest is not None:
        notes[media_types.LOCK_DIGEST] = str(lock_digest)
    if spec_digest is not None:
        notes[media_types.SPEC_DIGEST] = str(spec_digest)
    config = ImageConfig(
        platform=platform,
        diff_ids=tuple(layer.listed.diff_id for layer in layers),
        env=env or {},
        entrypoint=tuple(entrypoint),
        command=tuple(command),
        working_dir=working_dir,
        user=user,
        labels=labels or {},
        history=tuple(layer.listed.by for layer in layers),
    )
    blobs: dict[Descriptor, bytes] = {}
    plain = [_layer(layer) for layer in layers]
    image = erofs_metadata(layers)
    stored = zstandard.ZstdCompressor(level=METADATA_LEVEL, write_checksum=False).compress(image)
    diff_id = Digest.of(image)
    metadata = describe(
        stored,
        media_types.EROFS_LAYER_ZSTD,
        annotations={media_types.EROFS_UNCOMPRESSED_DIGEST: str(diff_id)},
    )
    blobs[metadata] = stored
    devices = [_device(layer) for layer in layers]
    features = {"os.features": [media_types.EROFS_OS_FEATURE]}
    erofs_config = replace(
        config,
        diff_ids=(*(layer.diff_id for layer in layers), diff_id),
        history=(*config.history, "envbuilder: merged EROFS metadata"),
        os_features=(media_types.EROFS_OS_FEATURE,),
    )
    erofs = _manifest(blobs, erofs_config, [*devices, metadata], notes, {**platform.to_json(), **features})
    # Who pins the platform's manifest, or lays layers of their own over it, has no index that says where the other is.
    found = {media_types.EROFS_MANIFEST: f"{erofs.digest} {erofs.size}"}
    manifest = _manifest(blobs, config, plain, {**notes, **found}, platform.to_json())
    index = Index(manifests=(manifest, erofs), annotations=notes).dump()
    descriptor = describe(index, media_types.OCI_INDEX)
    blobs[descriptor] = index
    return Image(
        descriptor=descriptor,
        manifest=manifest,
        erofs_manifest=erofs,
        metadata=metadata,
        layers=tuple(layers),
        blobs=MappingProxyType(blobs),
    )


def _layer(layer: Layer) -> Descriptor:
    """The layer as the plain manifest lists it: its name and its recipe stand beside its chunk index."""
    return _noted(layer.listed.blob, layer)


def _device(layer: Layer) -> Descriptor:
    blob = _noted(layer.blob, layer)
    notes = {
        media_types.EROFS_ROLE: media_types.EROFS_ROLE_DEVICE,
        media_types.EROFS_UNCOMPRESSED_DIGEST: str(layer.diff_id),
    }
    if layer.theirs:
        notes[media_types.DEVICE_OF] = str(layer.theirs.blob.digest)
    return replace(blob, annotations={**blob.annotations, **notes})


def _noted(blob: Descriptor, layer: Layer) -> Descriptor:
    notes = {media_types.LAYER_ID: layer.id, media_types.PLAN_KEY: str(layer.plan_key)}
    return replace(blob, annotations={**blob.annotations, **notes})


def _manifest(
    blobs: dict[Descriptor, bytes],
    config: ImageConfig,
    layers: Sequence[Descriptor],
    annotations: Mapping[str, str],
    platform: Mapping[str, object],
) -> Descriptor:
    """Add a config and the manifest over it to ``blobs``; the manifest's descriptor, for an index."""
    config_bytes = config.dump()
    config_blob = describe(config_bytes, media_types.OCI_CONFIG)
    data = Manifest(config=config_blob, layers=tuple(layers), annotations=annotations).dump()
    manifest = describe(data, media_types.OCI_MANIFEST, platform=platform)
    blobs[config_blob] = config_bytes
    blobs[manifest] = data
    return manifest
