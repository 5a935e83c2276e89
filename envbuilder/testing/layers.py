"""Layers and images from a few entries, built by the real writers: for tests of ours and of others."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from envbuilder.digest import Descriptor, Digest
from envbuilder.image.assemble import Image, assemble
from envbuilder.layer.frames import CHUNK_SIZE, FrameWriter
from envbuilder.layer.model import Layer
from envbuilder.layer.tar import write_tar
from envbuilder.layer.tree import Entry
from envbuilder.oci.platform import Platform
from envbuilder.store.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLayer:
    """A layer with its bytes, stored and uncompressed."""

    layer: Layer
    blob: bytes
    tar: bytes


def tar_of(entries: Iterable[Entry]) -> bytes:
    """The canonical tar of ``entries``."""
    out = io.BytesIO()
    write_tar(entries, out)
    return out.getvalue()


def layer_of(entries: Sequence[Entry], *, name: str = "test/layer", chunk_size: int = CHUNK_SIZE) -> BuiltLayer:
    """The layer of ``entries``."""
    out = io.BytesIO()
    writer = FrameWriter(out, chunk_size=chunk_size)
    placed = write_tar(entries, writer)
    framed = writer.finish()
    layer = Layer(
        id=name,
        blob=framed.blob,
        diff_id=framed.diff_id,
        plan_key=Digest.of(name.encode()),
        tar_size=framed.tar_size,
        placed=placed,
    )
    return BuiltLayer(layer=layer, blob=out.getvalue(), tar=tar_of(entries))


def push_image(
    target: Target, layers: Sequence[BuiltLayer], *, tag: str = "", env: Mapping[str, str] | None = None
) -> Image:
    """Assemble ``layers`` for x86_64, push every blob to ``target`` and tag it."""
    image = assemble(platform=Platform("x86_64"), layers=[built.layer for built in layers], env=env)
    contents: list[tuple[Descriptor, bytes]] = [(built.layer.blob, built.blob) for built in layers]
    for what, data in (*contents, *image.blobs.items()):
        target.push(what, partial(io.BytesIO, data))
    if tag:
        target.tag(image.descriptor, tag)
    return image
