"""A layer of an image of others becomes a device: the same files, owners, times and links in a tar of ours.

A lazy start reads it by chunks, which a gzip layer has not; whoever pulls gets the layer as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from envbuilder.digest import Digest
from envbuilder.image.plain import DAMAGES, plain_tar
from envbuilder.layer.base import BasePlan
from envbuilder.layer.build import make_layer
from envbuilder.layer.foreign_tar import BadLayer, Hashing, each_member, most_bytes, open_members, placed_of
from envbuilder.layer.model import Layer, Theirs
from envbuilder.layer.pax import BrokenEntry
from envbuilder.layer.record import dump_layer
from envbuilder.layer.tar import PathClash
from envbuilder.layer.tree import Entry, Placed
from envbuilder.lock.model import Artifact
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci import media_types
from envbuilder.store.layout import LayoutTarget

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
#: Bytes copied at a time.
_BLOCK = 1 << 20
_TARS = frozenset(
    {
        media_types.OCI_LAYER_TAR,
        media_types.OCI_LAYER_TAR_GZIP,
        media_types.OCI_LAYER_TAR_ZSTD,
        media_types.DOCKER_LAYER_TAR,
        media_types.DOCKER_LAYER_TAR_GZIP,
        media_types.DOCKER_LAYER_TAR_ZSTD,
    }
)


def build_base_layer(plan: BasePlan, store: LayoutTarget, *, cache: Path, helpers: int = 0) -> Layer:
    """Make the device of the layer of ``plan``, which ``store`` has, and remember both under the plan's key.

    cache: folder with room for the layer, unpacked. helpers: processes that compress beside this one.

    Raises:
        BadLayer, UnsafePath: it is not the layer that its image names, or none that can be laid below others.
        NotFound: the store has it not. HostError: no room.
    """
    source = f"layer {plan.layer.digest}"
    if plan.layer.media_type not in _TARS:
        raise BadLayer(f"{source}: want a tar, gzip or zstd layer, got {plan.layer.media_type[:100]!r}")
    with _unpacked(plan, store, cache, source) as tar:
        named = _named(tar, source)
        recipe = _Device(plan, named, tar.fileno())
        try:
            made = make_layer(recipe, _NoArtifacts(), store, cache=cache, helpers=helpers)
        except (BrokenEntry, PathClash) as error:
            raise BadLayer(f"{source}: {error}") from error
    placed = [replace(each, mtime_s=named[each.path].mtime_s) for each in made.placed if each.path in named]
    root = [named[""]] if "" in named else []
    theirs = Theirs(blob=plan.blob, diff_id=plan.layer.diff_id, by=plan.layer.by)
    layer = replace(made, placed=(*root, *placed), theirs=theirs)
    store.records.put(plan.key.hex, dump_layer(layer))
    return layer


@contextlib.contextmanager
def _unpacked(plan: BasePlan, store: LayoutTarget, cache: Path, source: str) -> Iterator[BinaryIO]:
    """The tar of the layer in a file without a name, proved to be the one that the image means."""
    folder = cache / "bases"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as tar:
        with store.fetch(plan.blob) as stored, plain_tar(stored) as plain:
            hashing = Hashing(plain, most_bytes(plan.layer.size), source)
            try:
                shutil.copyfileobj(cast("BinaryIO", hashing), tar, _BLOCK)
            except DAMAGES as error:
                raise BadLayer(f"{source}: {error}") from error
        if hashing.digest() != plan.layer.diff_id:
            raise BadLayer(f"{source}: want diff_id {plan.layer.diff_id}, got {hashing.digest()}")
        tar.seek(0)
        yield cast("BinaryIO", tar)


def _named(tar: BinaryIO, source: str) -> dict[str, Placed]:
    """What the tar has, by path; of what stands twice the last. A directory that no entry names is not here.

    Raises:
        BadLayer: an entry below one that is no directory, or a whiteout of nothing.
    """
    named: dict[str, Placed] = {}
    with open_members(tar, source) as members:
        for info in each_member(members, source):
            placed = placed_of(info, source)
            name = placed.path.rpartition("/")[2]
            if name.startswith(_WHITEOUT):
                if name.startswith(_WHITEOUT * 2) and name != _OPAQUE:
                    continue  # aufs keeps notes of its own there
                if name.removeprefix(_WHITEOUT) in ("", ".", ".."):
                    raise BadLayer(f"{source}: {placed.path[:200]!r}: a whiteout of nothing")
                placed = Placed(path=placed.path, mode=stat.S_IFREG | 0o644, mtime_s=placed.mtime_s)
            named[placed.path] = placed
    for path in named:
        above = path.rpartition("/")[0]
        while above:
            if (parent := named.get(above)) and not stat.S_ISDIR(parent.mode):
                raise BadLayer(
                    f"{source}: {path[:200]!r} lies below {above[:200]!r}, which is no directory of this layer"
                )
            above = above.rpartition("/")[0]
    return named


@dataclass(frozen=True, slots=True)
class _Device:
    """The LayerPlan of a device; ``tar`` is a descriptor of the unpacked tar."""

    plan: BasePlan
    named: dict[str, Placed]
    tar: int

    @property
    def id(self) -> str:
        return self.plan.id

    @property
    def key(self) -> Digest:
        return self.plan.key

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return ()

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:  # noqa: ARG002  LayerPlan's signature
        for path, placed in self.named.items():
            if path:
                yield self._entry(placed)

    def _entry(self, placed: Placed) -> Entry:
        linked = placed
        if placed.link and stat.S_ISREG(placed.mode):
            other = self.named.get(placed.link)
            # A hard link to a symbolic link is one more of it; to anything else that is no file, nothing.
            linked = replace(other, path=placed.path) if other and stat.S_ISLNK(other.mode) else placed
        has_data = bool(linked.size) and stat.S_ISREG(linked.mode) and not linked.link
        return Entry(
            path=placed.path,
            mode=linked.mode,
            uid=linked.uid,
            gid=linked.gid,
            size=linked.size,
            link=linked.link,
            device=linked.device,
            xattrs=linked.xattrs,
            open=partial(_part, self.tar, linked.offset, linked.size) if has_data else None,
            whiteout=placed.path.rpartition("/")[2].startswith(_WHITEOUT),
        )


class _NoArtifacts:
    """An ArtifactSource for what needs none."""

    def file(self, artifact: Artifact) -> Path:
        raise AssertionError(artifact)


class _Part(io.RawIOBase):
    """``size`` bytes of a file from ``offset`` on."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        super().__init__()
        self._fd, self._at, self._end = fd, offset, offset + size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        left = self._end - self._at
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


def _part(fd: int, offset: int, size: int) -> BinaryIO:
    return cast("BinaryIO", _Part(fd, offset, size))
