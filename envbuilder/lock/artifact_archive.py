"""Every artefact of a lock as one OCI artifact: a rebuild years later asks no index and no mirror.

Each wheel and deb is a blob under the sha256 that the lock names, so nothing is stored twice and what is there is
not sent again. The locks themselves are its first layers. Over a base of others an index names the artefacts and the
base (archived_base.py). Format: docs/formats/archive.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, describe, verifying
from envbuilder.errors import IntegrityError, RefusedError
from envbuilder.lock.archived_base import BaseCopy, base_below, copy_base, plan_base
from envbuilder.lock.codec import MAX_SIZE, digest, dump, load
from envbuilder.lock.model import Artifact, BaseImage, Lock, Wheel
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.store.cache import is_cached
from envbuilder.store.files import PendingFile, disk_errors
from envbuilder.store.target import Target
from envbuilder.store.whole import fetch_whole

#: Blobs sent at a time, as in a copy (registry.md 9).
_JOBS = 4
_ARCHIVE_AGAIN = "Archive this lock once more, while its base can still be had."


class NotAnArchive(IntegrityError):
    """A reference names something else than the artefacts of a lock."""

    hint = "Name what 'envbuilder archive ENV REF' wrote."


class NotArchived(RefusedError):
    """An archive does not have an artefact, or the base, that a build needs: it is of another lock."""

    hint = "Take the lock that is in the archive, or archive this one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive's locks, the root first, its blobs by digest, and what stands beside them: manifests of bases."""

    what: Descriptor
    locks: tuple[Lock, ...]
    blobs: Mapping[Digest, Descriptor]
    bases: frozenset[Digest] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivePlan:
    """What would be stored. root: what the tag is to name. documents: manifests, children first, with their bytes.

    blobs: all artefacts; missing: those of them that are not there. base: of the image below, where there is one.
    """

    root: Descriptor
    documents: tuple[tuple[Descriptor, bytes], ...] = field(repr=False)
    blobs: tuple[Descriptor, ...]
    missing: tuple[Descriptor, ...]
    base: BaseCopy | None = None

    @property
    def size(self) -> int:
        """Bytes of artefacts and of the base to move, at most: a registry may have some of the base elsewhere."""
        return sum(blob.size for blob in self.missing) + (self.base.plan.size if self.base else 0)


def artifacts_of(locks: Sequence[Lock]) -> tuple[Artifact, ...]:
    """Every wheel and deb that a build of ``locks`` may read, each once, by file name."""
    every: list[Artifact] = [each for lock in locks for each in lock.wheels]
    every += [each for lock in locks for each in lock.debs]
    found = {each.digest: each for each in every}
    return tuple(sorted(found.values(), key=lambda each: (isinstance(each, Wheel), each.file, each.digest)))


def archive_manifest(locks: Sequence[Lock]) -> tuple[Descriptor, bytes, tuple[Descriptor, ...]]:
    """The manifest of the archive of ``locks``, its bytes, and the blobs of the artefacts. Pure."""
    parts = [
        describe(dump(lock), media_types.LOCK_TOML, annotations={media_types.TITLE: f"{lock.name}.lock.toml"})
        for lock in locks
    ]
    blobs = tuple(_blob(each) for each in artifacts_of(locks))
    data = Manifest(
        config=describe(b"{}", media_types.OCI_EMPTY),
        layers=(*parts, *blobs),
        artifact_type=media_types.ARTIFACTS,
        annotations=_notes(locks[-1]),
    ).dump()
    return describe(data, media_types.OCI_MANIFEST, artifact_type=media_types.ARTIFACTS), data, blobs


def archive_index(locks: Sequence[Lock], artifacts: Descriptor, base: Descriptor) -> tuple[Descriptor, bytes]:
    """What names the ``artifacts`` of ``locks`` and the ``base`` below, and its bytes. Pure.

    No platform is said: it is no image, and whoever takes it for one should not start the base.
    """
    below = Descriptor(media_type=base.media_type, digest=base.digest, size=base.size)
    data = Index(
        manifests=(artifacts, below), artifact_type=media_types.ARTIFACTS, annotations=_notes(locks[-1])
    ).dump()
    return describe(data, media_types.OCI_INDEX, artifact_type=media_types.ARTIFACTS), data


def _notes(lock: Lock) -> dict[str, str]:
    return {
        media_types.LOCK_DIGEST: str(digest(lock)),
        media_types.TITLE: lock.name,
        media_types.VERSION: lock.version,
    }


def _blob(artifact: Artifact) -> Descriptor:
    kind = media_types.WHEEL if isinstance(artifact, Wheel) else media_types.DEB
    notes = {media_types.TITLE: artifact.file.rpartition("/")[2]}
    return Descriptor(media_type=kind, digest=artifact.digest, size=artifact.size, annotations=notes)


def plan_archive(target: Target, locks: Sequence[Lock], place: Callable[[], Target] | None) -> ArchivePlan:
    """What must move so that ``target`` has every artefact of ``locks``, and the image below.

    place: opens where that image is; called only where a part of it is missing. None: that image is left out.

    Raises:
        OtherBase: see archived_base.py. Whatever the targets raise.
    """
    what, data, blobs = archive_manifest(locks)
    with ThreadPoolExecutor(8, "archive-plan") as pool:
        there = list(pool.map(target.has, blobs))
    missing = tuple(blob for blob, found in zip(blobs, there, strict=True) if not found)
    base = base_below(locks)
    if base is None or place is None:
        return ArchivePlan(root=what, documents=((what, data),), blobs=blobs, missing=missing)
    copying = plan_base(target, base, place)
    index, index_data = archive_index(locks, what, copying.plan.root)
    documents = ((what, data), (index, index_data))
    return ArchivePlan(root=index, documents=documents, blobs=blobs, missing=missing, base=copying)


def push_archive(
    target: Target,
    locks: Sequence[Lock],
    artifacts: ArtifactSource,
    *,
    plan: ArchivePlan,
    tag: str,
    sent: Callable[[int], None] = lambda _size: None,
) -> Descriptor:
    """Store in ``target``, under ``tag``, what was planned of ``locks``: only what is missing is fetched and sent.

    Children first, the tag last: killed anywhere, no archive names a blob that is not there.

    Raises:
        DigestMismatch: an artefact is not what the lock names. Whatever fetching and storing raise.
    """
    by_digest = {each.digest: each for each in artifacts_of(locks)}

    def send(blob: Descriptor) -> None:
        file = artifacts.file(by_digest[blob.digest])
        target.push(blob, lambda: file.open("rb"))
        sent(blob.size)

    if plan.base:
        copy_base(plan.base, target, sent)
    with ThreadPoolExecutor(_JOBS, "archive") as pool:
        sending = [pool.submit(send, blob) for blob in sorted(plan.missing, key=lambda blob: -blob.size)]
        try:
            for done in sending:
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for lock in locks:
        target.push(describe(dump(lock), media_types.LOCK_TOML), partial(io.BytesIO, dump(lock)))
    target.push(describe(b"{}", media_types.OCI_EMPTY), partial(io.BytesIO, b"{}"))
    for what, data in plan.documents:
        if not target.has(what):
            target.push(what, partial(io.BytesIO, data))
    target.tag(plan.root, tag)
    return plan.root


def open_archive(target: Target, what: Descriptor) -> Archive:
    """The archive ``what`` of ``target``: its manifest and locks are read and checked, no artefact is.

    Raises:
        NotAnArchive: it is something else, or its locks are not those of its blobs.
        NotFound, DigestMismatch: from the target.
    """
    source = f"{target.name}: {what.digest}"
    document, bases = _manifest(target, what, source)
    locks = tuple(
        load(_read(target, part, MAX_SIZE), source=f"{source}: {part.digest}")
        for part in document.layers
        if part.media_type == media_types.LOCK_TOML
    )
    blobs = {part.digest: part for part in document.layers if part.media_type != media_types.LOCK_TOML}
    for each in artifacts_of(locks):
        if each.digest not in blobs or blobs[each.digest].size != each.size:
            raise NotAnArchive(f"{source}: {each.name} {each.version}: its lock names it, the archive has it not")
    if not locks:
        raise NotAnArchive(f"{source}: has no lock")
    return Archive(what=what, locks=locks, blobs=blobs, bases=bases)


def _manifest(target: Target, what: Descriptor, source: str) -> tuple[Manifest, frozenset[Digest]]:
    """The manifest of the artefacts, and the other children of an index that names it."""
    document = parse_document(_read(target, what, MAX_MANIFEST_SIZE), source=source)
    bases: frozenset[Digest] = frozenset()
    if isinstance(document, Index) and document.artifact_type == media_types.ARTIFACTS:
        ours = [child for child in document.manifests if child.artifact_type == media_types.ARTIFACTS]
        if len(ours) != 1:
            raise NotAnArchive(f"{source}: want the artefacts of one lock, got {len(ours)}")
        bases = frozenset(child.digest for child in document.manifests if child is not ours[0])
        document = parse_document(_read(target, ours[0], MAX_MANIFEST_SIZE), source=f"{source}: {ours[0].digest}")
    if not isinstance(document, Manifest) or document.artifact_type != media_types.ARTIFACTS:
        raise NotAnArchive(f"{source}: want the artefacts of a lock, got another kind of document")
    return document, bases


def _read(target: Target, what: Descriptor, most: int) -> bytes:
    return fetch_whole(target, what, most, NotAnArchive)


class ArchivedArtifacts:
    """An ArtifactSource over an archive; what came once stays in ``directory``, laid out as the artefact cache is.

    Thread-safe; no index and no mirror is ever asked.
    """

    def __init__(self, target: Target, archive: Archive, directory: Path) -> None:
        self._target, self._archive, self._directory = target, archive, directory

    def base(self, base: BaseImage) -> Target:
        """Where the layers of ``base`` are: the archive itself.

        Raises:
            NotArchived: it is not there, as in archives that were written before bases were stored.
        """
        if base.manifest not in self._archive.bases:
            where = f"{self._target.name}: {self._archive.what.digest}"
            raise NotArchived(f"{where}: no base {base.manifest} in this archive", hint=_ARCHIVE_AGAIN)
        return self._target

    def has(self, artifact: Artifact) -> bool:
        """Whether the artefact is on this machine."""
        return is_cached(self._path(artifact), artifact.size)

    def file(
        self, artifact: Artifact, *, progress: Callable[[Artifact, int], None] = lambda _artifact, _size: None
    ) -> Path:
        """A read-only local file with the artefact's bytes, fetched from the archive if need be.

        Raises:
            NotArchived: the archive lacks it. DigestMismatch: the target gave other bytes. HostError: the disk.
        """
        path = self._path(artifact)
        if self.has(artifact):
            return path
        blob = self._archive.blobs.get(artifact.digest)
        # Of another size it is a lie, and how much is written to the disk before that shows is up to whoever told it.
        if blob is None or blob.size != artifact.size:
            raise NotArchived(
                f"{self._target.name}: {self._archive.what.digest}: no {artifact.name} {artifact.version} "
                f"({artifact.digest}) in this archive"
            )
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        source = f"{self._target.name}: {artifact.name} {artifact.version}"
        with self._target.fetch(blob) as stream, PendingFile(path.parent) as pending:
            checked = verifying(stream, blob, source=source)
            while block := checked.read(BLOCK_SIZE):
                pending.write(block)
                progress(artifact, len(block))
            pending.publish(path)
        with disk_errors(path):
            path.chmod(0o444)
        return path

    def _path(self, artifact: Artifact) -> Path:
        return self._directory / "sha256" / artifact.digest.hex[:2] / artifact.digest.hex
