"""Documents beside an image: the locks it was made from, its SBOMs, its provenance.

Each is a referrer of the image's index (store/referrers.py), so the image and its digest stay as they are.
They are functions of the image: the second build of an image attaches nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.lock.codec import MAX_SIZE, load
from envbuilder.lock.model import Lock
from envbuilder.oci import media_types
from envbuilder.store.copy_referrers import copy_referrers
from envbuilder.store.referrers import read_referrer, referrers
from envbuilder.store.target import NotFound, Target
from envbuilder.store.whole import fetch_whole

#: Bytes of an SBOM or a statement that are read back: 10,000 packages are some 8 MB.
_MAX_DOCUMENT = 64 << 20
#: Locks that one image may be made from: parents do not nest deeper.
_MAX_LOCKS = 32
#: What a build attaches.
KINDS = (media_types.LOCK_ARTIFACT, media_types.CYCLONEDX, media_types.SPDX, media_types.IN_TOTO)
#: The same, with what only some stores know (image/records.py).
COPIED = (*KINDS, media_types.RECORDS)


class NotAttached(NotFound):
    """An image has no document of the kind that was asked for."""


class BadAttachment(IntegrityError):
    """A document beside an image is not of the form that its type promises."""


def all_attached(store: Target, subject: Descriptor) -> bool:
    """Whether ``store`` has every document that a build attaches to ``subject``."""
    return all_of(referrers(store, subject))


def all_of(listed: Iterable[Descriptor]) -> bool:
    """Whether ``listed``, the referrers of an image, are every document that a build attaches."""
    return {*KINDS} <= {each.artifact_type for each in listed}


def copy_attached(source: Target, subject: Descriptor, target: Target) -> int:
    """Let ``target``, which has the image ``subject``, have what a build attached to it in ``source``; bytes moved.

    Raises:
        As any copy (store/copy_referrers.py).
    """
    there = {each.digest for each in referrers(target, subject)}
    if there >= {each.digest for each in referrers(source, subject) if each.artifact_type in COPIED}:
        return 0
    return copy_referrers(source, subject, target, types=COPIED).copied_bytes


def attached(target: Target, subject: Descriptor, kind: str) -> tuple[tuple[str, bytes], ...]:
    """(name, bytes) of each part of the document of type ``kind`` beside ``subject``, an image's index.

    Raises:
        NotAttached: there is none. ForeignReferrer, BadAttachment, DigestMismatch: it is not what it should be.
    """
    found = referrers(target, subject, kind)
    if not found:
        raise NotAttached(
            f"{target.name}: {subject.digest}: no {kind} is attached",
            hint="Run: envbuilder build ENV --to REF, which attaches it, or copy the image with --referrers.",
        )
    where = f"{target.name}: {found[-1].digest}"
    manifest = read_referrer(target, found[-1], subject)
    if not 0 < len(manifest.layers) <= _MAX_LOCKS:
        raise BadAttachment(f"{where}: want 1 to {_MAX_LOCKS} parts, got {len(manifest.layers)}")
    return tuple((each.annotations.get(media_types.TITLE, ""), _read(target, each)) for each in manifest.layers)


def attached_locks(target: Target, subject: Descriptor, lock_digest: Digest) -> tuple[Lock, ...]:
    """The locks that the image ``subject`` was made from, the root of what it extends first.

    lock_digest: what the image itself says of the last of them; only that one is believed.

    Raises:
        NotAttached: there are none. BadAttachment: they are other locks than the image's, or not one chain.
    """
    parts = attached(target, subject, media_types.LOCK_ARTIFACT)
    source = f"{target.name}: {subject.digest}: attached lock"
    want: Digest | None = lock_digest
    chain: list[Lock] = []
    for name, data in reversed(parts):
        if len(data) > MAX_SIZE or Digest.of(data) != want:
            raise BadAttachment(f"{source} {name[:100]}: want {want or 'no further lock'}, got {Digest.of(data)}")
        lock = load(data, source=source)
        chain.append(lock)
        want = lock.parent.lock_digest if lock.parent else None
    if want is not None:
        raise BadAttachment(f"{source}: the lock of {chain[-1].parent and chain[-1].parent.name} is missing")
    return tuple(reversed(chain))


def _read(source: Target, what: Descriptor) -> bytes:
    return fetch_whole(source, what, _MAX_DOCUMENT, BadAttachment)
