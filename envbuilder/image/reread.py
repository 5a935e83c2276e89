"""Layers as they are read back from their own bytes: for an image that this store was given, not built."""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import Descriptor
from envbuilder.layer.build import find_layer
from envbuilder.layer.model import Layer
from envbuilder.layer.tree import Placed
from envbuilder.lock.predicted import PredictedLayer
from envbuilder.store.layout import LayoutTarget


def read_layers(store: LayoutTarget, blobs: Sequence[Descriptor], known: Sequence[PredictedLayer]) -> list[Layer]:
    """The layers ``known`` of an image, whose ``blobs`` are in ``store``: as a build noted them, else off their tars.

    Raises:
        tarfile.TarError, zstandard.ZstdError, DigestMismatch: a blob is no layer.
    """
    return [find_layer(each, store) or _read(store, blob, each) for blob, each in zip(blobs, known, strict=True)]


def layer_tar(stored: BinaryIO) -> tarfile.TarFile:
    """The tar in a stream of a layer's blob, to be read once from front to back."""
    plain = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
    return tarfile.open(fileobj=cast("BinaryIO", plain), mode="r|", errors="surrogateescape")


def _read(store: LayoutTarget, blob: Descriptor, known: PredictedLayer) -> Layer:
    with store.fetch(blob) as stored, layer_tar(stored) as tar:
        placed = tuple(_placed(tar))
        size = tar.offset
    return Layer(id=known.id, blob=blob, diff_id=known.diff_id, plan_key=known.key, tar_size=size, placed=placed)


def _placed(tar: tarfile.TarFile) -> Iterator[Placed]:
    """What documents are made of: files and where they lie, symbolic links."""
    for info in tar:
        if info.isreg():
            mode = stat.S_IFREG | info.mode
            yield Placed(path=info.name, mode=mode, size=info.size, offset=info.offset_data if info.size else 0)
        elif info.issym():
            yield Placed(path=info.name, mode=stat.S_IFLNK | info.mode, link=info.linkname)
