"""A layer of an image of others becomes a device: the same files, owners, times and links in a tar of ours.

A lazy start reads it by chunks, which a gzip layer has not; whoever pulls gets the layer as it is.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from envbuilder.digest import Digest
from envbuilder.image.plain import check_media_type, plain_tar, proved
from envbuilder.layer.base import BasePlan
from envbuilder.layer.build import make_layer
from envbuilder.layer.foreign_tar import BadLayer, each_member, open_members, placed_of
from envbuilder.layer.model import Layer, Theirs
from envbuilder.layer.pax import BrokenEntry
from envbuilder.layer.record import dump_layer
from envbuilder.layer.tar import PathClash
from envbuilder.layer.tree import OPAQUE, WHITEOUT, Entry, Placed
from envbuilder.lock.model import Artifact
from envbuilder.lock.source import ArtifactSource
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.tarscan import Extent, ExtentReader

#: Bytes copied at a time.
_BLOCK = 1 << 20


def build_base_layer(plan: BasePlan, store: LayoutTarget, *, cache: Path, helpers: int = 0) -> Layer:
    """Make the device of the layer of ``plan``, which ``store`` has, and remember both under the plan's key.

    cache: folder with room for the layer, unpacked. helpers: processes that compress beside this one.

    Raises:
        BadLayer, UnsafePath: it is not the layer that its image names, or none that can be laid below others.
        NotFound: the store has it not. HostError: no room.
    """
    source = f"layer {plan.layer.digest}"
    check_media_type(plan.blob, source)
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
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as tar:
        with (
            store.fetch(plan.blob) as stored,
            plain_tar(stored) as plain,
            proved(plain, plan.blob, plan.layer.diff_id, source) as checked,
        ):
            shutil.copyfileobj(cast("BinaryIO", checked), tar, _BLOCK)
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
            if name.startswith(WHITEOUT):
                if name.startswith(WHITEOUT * 2) and name != OPAQUE:
                    continue  # aufs keeps notes of its own there
                if name.removeprefix(WHITEOUT) in ("", ".", ".."):
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
            whiteout=placed.path.rpartition("/")[2].startswith(WHITEOUT),
        )


class _NoArtifacts:
    """An ArtifactSource for what needs none."""

    def file(self, artifact: Artifact) -> Path:
        raise AssertionError(artifact)


def _part(fd: int, offset: int, size: int) -> BinaryIO:
    return cast("BinaryIO", ExtentReader(None, fd, Extent(offset, size)))
