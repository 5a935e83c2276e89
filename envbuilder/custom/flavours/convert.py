"""An image in a flavour: every layer written anew, the config changed only where its diff_ids are others."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuilder.custom.flavours.chunked import CHUNKED_WRITER, write_chunked
from envbuilder.custom.flavours.names import Flavour
from envbuilder.custom.flavours.stargz import STARGZ_WRITER, write_stargz
from envbuilder.custom.flavours.written import WrittenLayer
from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, canonical_json, describe, parse_json_object, verifying
from envbuilder.errors import EnvbuilderError
from envbuilder.image.inspect import OpenImage
from envbuilder.image.plain import plain_tar, proved
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.files import disk_errors
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target

_WRITERS = {"estargz": (write_stargz, STARGZ_WRITER), "zstd-chunked": (write_chunked, CHUNKED_WRITER)}
#: What a layer's notes say of its old bytes.
_OF_THE_BLOB = frozenset(
    {
        media_types.EROFS_CHUNK_INDEX_RANGE,
        media_types.EROFS_CHUNK_INDEX_DIGEST,
        media_types.LAYER_PAGES,
        media_types.PLAN_KEY,
        media_types.STARGZ_TOC_DIGEST,
    }
)
#: Gets bytes of the old layers that are done.
Progress = Callable[[int], None]


def convert(
    image: OpenImage, source: Target, store: LayoutTarget, flavour: Flavour, *, jobs: int, progress: Progress
) -> Descriptor:
    """Let ``store`` have ``image`` in ``flavour``; its index. Same image and same libraries, same bytes.

    Layers that were converted before are taken from the store.

    Raises:
        NoFlavour: the format has no place for what a layer holds. BadLayer, DigestMismatch: a layer is damaged.
        UnavailableError, HostError: as any reading and writing.
    """
    layers = []
    for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
        layers.append(_recalled(store, layer, flavour) or _written(source, layer, diff_id, store, flavour, jobs))
        progress(layer.size)
    config = _config(image, source, [written.diff_id for written in layers])
    config_blob = describe(config, media_types.OCI_CONFIG)
    manifest = Manifest(
        config=config_blob,
        layers=tuple(_named(new, old) for new, old in zip(layers, image.manifest.layers, strict=True)),
        annotations=image.manifest.annotations,
    ).dump()
    manifest_blob = describe(manifest, media_types.OCI_MANIFEST, platform=image.config.platform.to_json())
    notes = {**image.annotations, media_types.FLAVOUR_OF: str(image.root.digest)}
    index = Index(manifests=(manifest_blob,), annotations=notes).dump()
    root = describe(index, media_types.OCI_INDEX)
    for what, data in ((config_blob, config), (manifest_blob, manifest), (root, index)):
        store.push(what, partial(io.BytesIO, data))
    return root


def _named(new: WrittenLayer, old: Descriptor) -> Descriptor:
    kept = {key: text for key, text in old.annotations.items() if key not in _OF_THE_BLOB and not _is_chunked(key)}
    what = new.descriptor
    return Descriptor(media_type=what.media_type, digest=what.digest, size=what.size, annotations={**kept, **new.notes})


def _is_chunked(key: str) -> bool:
    return key.startswith(media_types.ZSTD_CHUNKED)


def _config(image: OpenImage, source: Target, diff_ids: list[Digest]) -> bytes:
    """The config as it is, but for its diff_ids."""
    what = image.manifest.config
    with source.fetch(what) as stream:
        data = verifying(stream, what, source=source.name).read()
    if tuple(diff_ids) == image.config.diff_ids:
        return data
    value = parse_json_object(data, source=f"{source.name}: {what.digest}")
    value["rootfs"] = {**cast("dict[str, Any]", value["rootfs"]), "diff_ids": [str(diff_id) for diff_id in diff_ids]}
    return canonical_json(value)


def _written(
    source: Target, layer: Descriptor, diff_id: Digest, store: LayoutTarget, flavour: Flavour, jobs: int
) -> WrittenLayer:
    name = f"{source.name}: layer {layer.digest}"
    write, _ = _WRITERS[flavour]
    with (
        disk_errors(store.directory),
        tempfile.TemporaryDirectory(prefix="flavour-", dir=store.directory) as folder,
        (Path(folder) / "tar").open("w+b") as tar,
    ):
        blob = Path(folder) / "blob"
        _spool(source, layer, diff_id, tar, name)
        with blob.open("wb") as out:
            written = write(tar, out, jobs=jobs, source=name)
        store.push(written.descriptor, lambda: blob.open("rb"))
    value = {"blob": written.descriptor.to_json(), "diff_id": str(written.diff_id)}
    store.records.put(_key(layer, flavour), json.dumps(value).encode())
    return written


def _spool(source: Target, layer: Descriptor, diff_id: Digest, tar: BinaryIO, name: str) -> None:
    with (
        source.fetch(layer) as stored,
        plain_tar(verifying(stored, layer, source=source.name)) as plain,
        proved(plain, layer, diff_id, name) as checked,
    ):
        shutil.copyfileobj(cast("BinaryIO", checked), tar, BLOCK_SIZE)


def _key(layer: Descriptor, flavour: Flavour) -> str:
    writer = _WRITERS[flavour][1]
    return f"flavour-{hashlib.sha256(f'{writer} {layer.digest}'.encode()).hexdigest()}"


def _recalled(store: LayoutTarget, layer: Descriptor, flavour: Flavour) -> WrittenLayer | None:
    """What ``layer`` became before, if the store still has it."""
    try:
        value: Mapping[str, Any] = json.loads(store.records.get(_key(layer, flavour)) or b"{}")
        what, diff_id = Descriptor.from_json(value["blob"]), Digest.parse(value["diff_id"])
    except (ValueError, KeyError, TypeError, EnvbuilderError):
        return None
    if not store.has(what):
        return None
    return WrittenLayer(
        media_type=what.media_type, digest=what.digest, size=what.size, diff_id=diff_id, notes=what.annotations
    )
