"""An image of others made ready for a lazy start: EROFS metadata written here, and a device for each of its layers.

eStargz and zstd:chunked layers are read through their own tables, at once, and layers of ours through their own chunk
indexes (based.py). Any other layer is pulled once, whole, and is a complete device from then on. The image's digests
stay what they are; what is made here lies in the cache:

    foreign/<sha256>.spans         how a device's bytes lie in its blob (spans.py)
    foreign/<sha256>.tree          the layer's names, and where their data are on the device
    foreign/images/<sha256>.json   the metadata and devices of an image, by its plain manifest and what shows its layers
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envbuilder.digest import Descriptor, Digest, canonical_json
from envbuilder.errors import EnvbuilderError, IntegrityError, SpecError, UnavailableError
from envbuilder.image.inspect import OpenImage
from envbuilder.layer import erofs_format
from envbuilder.layer.metadata import merged_metadata
from envbuilder.mount.chunks.store import ChunkStore, put_file
from envbuilder.mount.foreign.based import read_based
from envbuilder.mount.foreign.layerindex import dump_layer, find_layer_index, parse_layer
from envbuilder.mount.foreign.pulled import TAR_BLOCK, NoGzipIndex, pull_layer
from envbuilder.mount.foreign.spans import SpanMap, read_spans
from envbuilder.mount.foreign.toc import ForeignLayer, read_table
from envbuilder.mount.request import Device
from envbuilder.mount.unpack.layers import NotUnpacked
from envbuilder.oci import media_types
from envbuilder.oci.tables import chunked_notes, has_table
from envbuilder.store.files import only_one
from envbuilder.store.target import RangeTarget

_log = logging.getLogger(__name__)

#: Raise it when a device or the metadata of one image would become others.
_FORMAT = "foreign/1"
#: log2 of 512 and 4096: tars are aligned to the one, devices of tables to the other.
_TAR_BITS, _TABLE_BITS = 9, 12
#: Gets bytes fetched and bytes to fetch.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignImage:
    """What is mounted: a file with EROFS metadata, and the devices in their order."""

    metadata: Path
    devices: tuple[Device, ...]


def foreign_image(
    image: OpenImage,
    source: RangeTarget,
    cache: Path,
    *,
    progress: Progress = lambda _done, _total: None,
    trusted: bool = False,
) -> ForeignImage | None:
    """``image``, which has no EROFS manifest, as EROFS; None where only unpacking can show it (the log says why).

    trusted: believe checkpoint indexes that the registry has beside the layers. They cannot be proved from the image.

    Raises:
        StoreRefused, NotUnpacked: no room. UnavailableError: as any reading.
    """
    folder = cache / "foreign"
    believed = source.name if trusted else ""
    maker = _Maker(image, source, folder, ChunkStore(cache / "chunks"), progress, believed)
    kept = folder / "images" / f"{_image_key(image, believed).hex}.json"
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_one(folder / f"{image.descriptor.digest.hex}.lock"):
            return _kept(maker, kept, cache) or _make(maker, kept, cache)
    except (IntegrityError, SpecError, NoGzipIndex) as error:
        _log.warning("%s: cannot be read lazily: %s", image.root.digest, error)
        return None
    except OSError as error:
        raise NotUnpacked(f"{image.root.digest}: {folder}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Maker:
    image: OpenImage
    source: RangeTarget
    folder: Path
    store: ChunkStore
    progress: Progress
    believed: str

    def device(self, layer: Descriptor, size: int) -> Device:
        key = device_key(layer, self.believed)
        return Device(layer, size, key, self.spans(layer, key))

    def spans(self, layer: Descriptor, key: Digest) -> Path:
        """The file that says how the device ``key`` lies in its blob.

        Where the last member of an eStargz layer ends is read off the blob's end, which nothing proves: each
        repository says it for itself.
        """
        if media_types.STARGZ_TOC_DIGEST in layer.annotations:
            key = Digest.of(canonical_json([str(key), self.source.name]))
        return self.folder / f"{key.hex}.spans"


def device_key(layer: Descriptor, believed: str = "") -> Digest:
    """The name of a layer's device in the chunk store: of the way it is cut, and what its pieces are proved by.

    A manifest may name any table of a layer that another image has, too. believed: whose word is taken for a layer
    without a table: the repository's, or "" where it is pulled whole.
    """
    notes = layer.annotations
    table = (notes.get(media_types.STARGZ_TOC_DIGEST), chunked_notes(notes), layer.size) if has_table(layer) else None
    return Digest.of(canonical_json([_FORMAT, str(layer.digest), table or believed]))


def _image_key(image: OpenImage, believed: str) -> Digest:
    """Of the image and all that its metadata are made of: who believes another says otherwise of the same manifest."""
    keys = [str(device_key(layer, believed)) for layer in image.manifest.layers]
    return Digest.of(canonical_json([_FORMAT, str(image.descriptor.digest), keys]))


def _kept(maker: _Maker, kept: Path, cache: Path) -> ForeignImage | None:
    """What was made before, if all of it is still here and can be read."""
    try:
        value = json.loads(kept.read_bytes())
        metadata = cache / "metadata" / f"{Digest.parse(value['metadata']).hex}.erofs"
        if value["format"] != _FORMAT or Digest.of(metadata.read_bytes()) != Digest.parse(value["metadata"]):
            return None
        ours = [Descriptor.from_json(each) for each in value["base"]]
        devices = [
            Device(ours[number], int(size)) if number < len(ours) else maker.device(layer, int(size))
            for number, (layer, size) in enumerate(zip(maker.image.manifest.layers, value["sizes"], strict=True))
        ]
    except (OSError, ValueError, KeyError, TypeError, EnvbuilderError):
        return None
    if all(_is_readable(device, maker.store) for device in devices[len(ours) :]):
        return ForeignImage(metadata=metadata, devices=tuple(devices))
    return None


def _is_readable(device: Device, store: ChunkStore) -> bool:
    if store.is_complete(device.stored_as, device.size):
        return True
    try:
        spans = read_spans(device)
    except EnvbuilderError:
        return False
    return spans is not None and spans.is_readable and spans.size == device.size


def _make(maker: _Maker, kept: Path, cache: Path) -> ForeignImage:
    image = maker.image
    layers = []
    based, is_final = None, True
    try:
        based = read_based(image.manifest, maker.source, cache)
    except UnavailableError as error:  # it is pulled this time; the next start looks again
        _log.warning("%s: its base cannot be asked for: %s", image.root.digest, error)
        is_final = False
    below = [Device(*both) for both in zip(based.layers, based.sizes, strict=True)] if based else []
    theirs = image.manifest.layers[len(below) :]
    total, moved = sum(layer.size for layer in theirs), 0

    def fetched(size: int) -> None:
        nonlocal moved
        moved += size
        maker.progress(moved, total)

    for layer, diff_id in zip(theirs, image.config.diff_ids[len(below) :], strict=True):
        before = moved
        layers.append(_layer(maker, layer, diff_id, fetched))
        moved = before + layer.size
        maker.progress(moved, total)
    devices = below + [maker.device(layer, made.spans.size) for layer, made in zip(theirs, layers, strict=True)]
    bits = _TAR_BITS if any(made.block == TAR_BLOCK for made in layers) else _TABLE_BITS
    data = merged_metadata(
        [made.placed for made in layers],
        [erofs_format.Device(device.stored_as.hex, device.size) for device in devices],
        block_bits=bits,
        below=based.root if based else None,
    )
    digest = Digest.of(data)
    metadata = cache / "metadata" / f"{digest.hex}.erofs"
    put_file(metadata, data)
    value = {
        "format": _FORMAT,
        "metadata": str(digest),
        "sizes": [device.size for device in devices],
        "base": [device.blob.to_json() for device in below],
    }
    if is_final:
        put_file(kept, json.dumps(value).encode())
    return ForeignImage(metadata=metadata, devices=tuple(devices))


def _layer(maker: _Maker, layer: Descriptor, diff_id: Digest, fetched: Callable[[int], None]) -> ForeignLayer:
    """One layer: as it was made before for another image, from its own table, believed, or pulled.

    Another image that has it and starts now waits: two would write to one file, which is proved before it is adopted.
    """
    key = device_key(layer, maker.believed)
    with only_one(maker.folder / f"{key.hex}.lock"):
        return _layer_of(maker, layer, diff_id, key, fetched)


def _layer_of(
    maker: _Maker, layer: Descriptor, diff_id: Digest, key: Digest, fetched: Callable[[int], None]
) -> ForeignLayer:
    tree, spans = maker.folder / f"{key.hex}.tree", maker.spans(layer, key)
    where = f"{maker.source.name}: layer {layer.digest}"
    try:
        made = parse_layer(tree.read_bytes(), spans.read_bytes(), blob_size=layer.size, source=where)
        if made.spans.is_readable or maker.store.is_complete(key, made.spans.size):
            return made
    except (OSError, EnvbuilderError):
        pass  # not here yet
    if has_table(layer):
        made = read_table(maker.source, layer)
        if not made.spans.is_readable:  # names and no data
            _adopt(maker.store, key, made.spans, io.BytesIO(bytes(made.spans.size)), layer)
    elif maker.believed and (found := find_layer_index(maker.source, layer)) is not None:
        made = found
    else:
        made = _pulled(maker, layer, diff_id, key, fetched)
    names, table = dump_layer(made)
    put_file(spans, table)
    put_file(tree, names)
    return made


def _pulled(
    maker: _Maker, layer: Descriptor, diff_id: Digest, key: Digest, fetched: Callable[[int], None]
) -> ForeignLayer:
    """One layer, whole: the device ``key``."""
    data = maker.folder / f"{key.hex}.tar"
    try:
        made = pull_layer(maker.source, layer, diff_id, data, fetched)
        with data.open("rb") as tar:
            _adopt(maker.store, key, made.spans, tar, layer)
    finally:
        data.unlink(missing_ok=True)
    return made


def _adopt(store: ChunkStore, key: Digest, spans: SpanMap, data: BinaryIO, layer: Descriptor) -> None:
    """Let ``data`` be the whole device ``key``."""
    stored = store.open(key, spans.offsets[:-1], spans.size, layer=layer.digest)
    try:
        for number in range(len(spans)):
            stored.write(number, data.read(spans[number].size))
    finally:
        stored.close()
