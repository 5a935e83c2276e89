"""Build an image again from the lock that is attached to it, and compare: digest by digest, then file by file."""

from __future__ import annotations

import hashlib
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, TypeAlias

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.image.attached import attached_locks
from envbuilder.image.build import Finished, build_image
from envbuilder.image.inspect import OpenImage
from envbuilder.image.reread import layer_tar
from envbuilder.lock.model import Deb, Lock
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.paths import join_below
from envbuilder.proc import Runner
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target

#: Gives, for the lock of an image, this host's platform and packages locked for it; None: the image's own will do.
Helper: TypeAlias = Callable[[Lock], tuple[Sequence[Deb], Platform] | None]
#: Gives what starts the interpreter of the base of the locks of an image, whose layers are at the target.
Confine: TypeAlias = Callable[[Sequence[Lock], Target], Runner]


class NotOurs(IntegrityError):
    """An image does not say which lock it was made from, so nothing can be built again."""

    hint = "Only images that envbuilder built can be verified."


class NotReproduced(IntegrityError):
    """The image that its own lock gives is another one: a layer, and the first file in it, differ."""

    hint = "Trust neither until you know why: another recipe, a changed store, or a forged image."


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One layer: as the image has it, and as its lock gives it."""

    id: str
    want: Digest
    got: Digest

    @property
    def same(self) -> bool:
        return self.want == self.got


def verify_image(
    source: Target,
    image: OpenImage,
    artifacts: ArtifactSource,
    scratch: Path,
    *,
    cache: Path,
    jobs: int,
    finished: Finished = lambda _layer, _reused: None,
    helper: Helper = lambda _lock: None,
    confine: Confine | None = None,
) -> tuple[Compared, ...]:
    """Rebuild ``image`` in an empty store below ``scratch``; every layer compared, base first.

    Nothing of the machine's own store is used. ``scratch`` takes as many bytes as the image.
    helper: what compiles for an image of another architecture (build_image); it decides no byte.
    confine: what starts the interpreter of a base of others, whose layers are at a target.

    Raises:
        NotOurs, NotAttached, BadAttachment: there is no lock to build from.
        NotReproduced: names the layer and the first file that differ. Whatever a build raises.
    """
    recorded = image.annotations.get(media_types.LOCK_DIGEST)
    if recorded is None:
        raise NotOurs(f"{source.name}: {image.root.digest}: it names no lock")
    locks = attached_locks(source, image.root, Digest.parse(recorded))
    folders = {lock.name: scratch / "files" / lock.name for lock in locks}
    for lock in locks:
        _project_files(lock, source, image, folders[lock.name])
    store = LayoutTarget(scratch / "store", create=True)
    built = build_image(
        locks,
        store,
        artifacts,
        cache=cache,
        folders=folders,
        jobs=jobs,
        tag="again",
        finished=finished,
        documents=False,
        helper=helper(locks[-1]),
        base=lambda: source,  # an image over one of others has the layers of that
        confined=partial(confine, locks, source) if confine else None,
    )
    theirs, ours = image.manifest.layers, built.image.layers
    rows = tuple(
        Compared(id=mine.id, want=their.digest, got=mine.listed.blob.digest)
        for their, mine in zip(theirs, ours, strict=False)
    )
    for row, their, mine in zip(rows, theirs, ours, strict=False):
        if not row.same:
            name = f"layer {row.id}: want {row.want}, got {row.got}"
            raise NotReproduced(f"{image.root.digest}: {name}: {first_difference(source, their, store, mine.blob)}")
    if len(theirs) != len(ours):
        raise NotReproduced(f"{image.root.digest}: it has {len(theirs)} layers, its lock gives {len(ours)}")
    if built.image.descriptor.digest != image.root.digest:
        raise NotReproduced(
            f"{image.root.digest}: every layer is the same, the manifests differ: got {built.image.descriptor.digest}"
        )
    return rows


def _project_files(lock: Lock, source: Target, image: OpenImage, folder: Path) -> None:
    """The project's own files, out of the image: the lock has their digests, so they need no trust."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {rule.path: rule for rule in lock.files}
    top = next(
        (each for each in image.manifest.layers if each.annotations.get(media_types.LAYER_ID) == f"{lock.name}/top"),
        None,
    )
    if not wanted or top is None:
        return
    with source.fetch(top) as stored, layer_tar(stored) as tar:
        for info in tar:
            rule = wanted.get(info.name)
            if rule is not None and (data := tar.extractfile(info)) is not None:
                file = join_below(folder, rule.source, source="lock")
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    shutil.copyfileobj(data, out, 1 << 20)


def first_difference(one: Target, theirs: Descriptor, two: Target, ours: Descriptor) -> str:
    """The first file of two layers that is not the same, and in what."""
    try:
        with one.fetch(theirs) as left, two.fetch(ours) as right:
            for there, here in zip_longest(_listing(left), _listing(right)):
                if there == here:
                    continue
                if there is None or here is None or there["path"] != here["path"]:
                    names = sorted(each["path"] for each in (there, here) if each)
                    only = "the image" if there and there["path"] == names[0] else "the rebuilt layer"
                    return f"the first difference is {names[0]!r}, which is only in {only}"
                what = next(key for key in there if there[key] != here[key])
                return f"the first difference is {there['path']!r}: {what}: want {there[what]}, got {here[what]}"
    except (EnvbuilderError, tarfile.TarError, zstandard.ZstdError, OSError) as error:
        return f"the layers cannot be compared further: {error}"
    return "every file is the same, the tar or its compression is not"


def _listing(stored: BinaryIO) -> Iterator[Mapping[str, str]]:
    with layer_tar(stored) as tar:
        for info in tar:
            digest = hashlib.sha256()
            if info.isreg() and (data := tar.extractfile(info)) is not None:
                while block := data.read(1 << 20):
                    digest.update(block)
            yield {
                "path": info.name,
                "type": stat.filemode(_TYPES.get(info.type, 0) | info.mode),
                "owner": f"{info.uid}:{info.gid}",
                "link": info.linkname,
                "device": f"{info.devmajor}:{info.devminor}",
                "size": str(info.size),
                "mtime": str(info.mtime),
                "attributes": str({key: value for key, value in info.pax_headers.items() if key != "comment"}),
                "content": digest.hexdigest(),
            }


_TYPES = {tarfile.REGTYPE: stat.S_IFREG, tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}


def layers_of(rows: Sequence[Compared]) -> list[dict[str, object]]:
    """``rows`` as JSON."""
    return [{"id": row.id, "digest": str(row.want), "rebuilt": str(row.got), "same": row.same} for row in rows]
