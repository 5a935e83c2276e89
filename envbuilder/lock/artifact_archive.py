"""Every artefact of a lock as one OCI artifact: a rebuild years later asks no index and no mirror.

Each wheel and deb is a blob under the sha256 that the lock names, so nothing is stored twice and what is there is
not sent again. The locks themselves are its first layers. Format: docs/formats/archive.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, describe, verifying
from envbuilder.errors import IntegrityError, RefusedError
from envbuilder.lock.codec import MAX_SIZE, digest, dump, load
from envbuilder.lock.model import Artifact, Lock, Wheel
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Manifest, parse_document
from envbuilder.store.files import PendingFile, disk_errors
from envbuilder.store.target import Target
from envbuilder.store.whole import fetch_whole

#: Blobs sent at a time, as in a copy (registry.md 9).
_JOBS = 4


class NotAnArchive(IntegrityError):
    """A reference names something else than the artefacts of a lock."""

    hint = "Name what 'envbuilder archive ENV REF' wrote."


class NotArchived(RefusedError):
    """An archive does not have an artefact that a build needs: it is of another lock."""

    hint = "Take the lock that is in the archive, or archive this one."


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive's locks, the root first, and its blobs by digest."""

    what: Descriptor
    locks: tuple[Lock, ...]
    blobs: Mapping[Digest, Descriptor]


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
    notes = {media_types.LOCK_DIGEST: str(digest(locks[-1])), media_types.TITLE: locks[-1].name}
    data = Manifest(
        config=describe(b"{}", media_types.OCI_EMPTY),
        layers=(*parts, *blobs),
        artifact_type=media_types.ARTIFACTS,
        annotations={**notes, media_types.VERSION: locks[-1].version},
    ).dump()
    return describe(data, media_types.OCI_MANIFEST, artifact_type=media_types.ARTIFACTS), data, blobs


def _blob(artifact: Artifact) -> Descriptor:
    kind = media_types.WHEEL if isinstance(artifact, Wheel) else media_types.DEB
    notes = {media_types.TITLE: artifact.file.rpartition("/")[2]}
    return Descriptor(media_type=kind, digest=artifact.digest, size=artifact.size, annotations=notes)


def missing_blobs(target: Target, blobs: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
    """Those of ``blobs`` that ``target`` lacks."""
    with ThreadPoolExecutor(8, "archive-plan") as pool:
        there = list(pool.map(target.has, blobs))
    return tuple(blob for blob, found in zip(blobs, there, strict=True) if not found)


def push_archive(
    target: Target,
    locks: Sequence[Lock],
    artifacts: ArtifactSource,
    *,
    tag: str,
    sent: Callable[[int], None] = lambda _size: None,
) -> Descriptor:
    """Store the artefacts of ``locks`` in ``target`` under ``tag``: only what is missing is fetched and sent.

    Children first, the tag last: killed anywhere, no archive names a blob that is not there.

    Raises:
        DigestMismatch: an artefact is not what the lock names. Whatever fetching and storing raise.
    """
    what, data, blobs = archive_manifest(locks)
    by_digest = {each.digest: each for each in artifacts_of(locks)}

    def send(blob: Descriptor) -> None:
        file = artifacts.file(by_digest[blob.digest])
        target.push(blob, lambda: file.open("rb"))
        sent(blob.size)

    missing = sorted(missing_blobs(target, blobs), key=lambda blob: -blob.size)
    with ThreadPoolExecutor(_JOBS, "archive") as pool:
        sending = [pool.submit(send, blob) for blob in missing]
        try:
            for done in sending:
                done.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for lock in locks:
        target.push(describe(dump(lock), media_types.LOCK_TOML), partial(io.BytesIO, dump(lock)))
    target.push(describe(b"{}", media_types.OCI_EMPTY), partial(io.BytesIO, b"{}"))
    if not target.has(what):
        target.push(what, partial(io.BytesIO, data))
    target.tag(what, tag)
    return what


def open_archive(target: Target, what: Descriptor) -> Archive:
    """The archive ``what`` of ``target``: its manifest and locks are read and checked, no artefact is.

    Raises:
        NotAnArchive: it is something else, or its locks are not those of its blobs.
        NotFound, DigestMismatch: from the target.
    """
    source = f"{target.name}: {what.digest}"
    document = parse_document(_read(target, what, MAX_MANIFEST_SIZE), source=source)
    if not isinstance(document, Manifest) or document.artifact_type != media_types.ARTIFACTS:
        raise NotAnArchive(f"{source}: want the artefacts of a lock, got another kind of document")
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
    return Archive(what=what, locks=locks, blobs=blobs)


def _read(target: Target, what: Descriptor, most: int) -> bytes:
    return fetch_whole(target, what, most, NotAnArchive)


class ArchivedArtifacts:
    """An ArtifactSource over an archive; what came once stays in ``directory``, laid out as the artefact cache is.

    Thread-safe; no index and no mirror is ever asked.
    """

    def __init__(self, target: Target, archive: Archive, directory: Path) -> None:
        self._target, self._archive, self._directory = target, archive, directory

    def has(self, artifact: Artifact) -> bool:
        """Whether the artefact is on this machine."""
        try:
            return self._path(artifact).stat().st_size == artifact.size
        except OSError:
            return False

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
        if blob is None:
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
