"""Referrers: artifacts that name an image as their subject. Listed, attached, read, on any target.

Where a target lists them itself (the API of a registry) it is asked; the index under the tag
``sha256-HEX`` has them everywhere else (distribution-spec 1.1, "Referrers Tag Schema"; registry.md 5).
Nothing that is listed is trusted: ``read_referrer`` checks that it is of its subject.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from envbuilder.digest import Descriptor, Digest, InvalidJson, describe
from envbuilder.errors import IntegrityError, RefusedError, UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.artifact import (
    EMPTY,
    EMPTY_BYTES,
    artifact,
    as_referrer,
    merged,
    parse_listed,
    plain,
    referrers_tag,
)
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.store.begun import begun
from envbuilder.store.target import NotFound, Opener, Target
from envbuilder.store.whole import fetch_whole

#: Times that a lost race for the tag is run again, and the seconds that a pause begins with.
_ATTEMPTS = 12
_PAUSE_S = 0.05
#: Writers that were reading when we wrote are done after this many times what reading and writing took us.
_SETTLED = 3.0

#: What became of a tag: it is ours, another writer was first, or it is ours and nobody compared.
Swapped: TypeAlias = Literal["done", "lost", "unsure"]


class ReferrersTagTaken(RefusedError):
    """The tag that should list referrers names something else: an image, or the subject itself."""


class ReferrersContended(UnavailableError):
    """Others kept changing the list of referrers, or the target does not keep what it was given."""


class ForeignReferrer(IntegrityError):
    """A manifest was listed as a referrer of a subject that it does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a target lists itself; ``complete``: the tag need not be asked besides."""

    found: tuple[Descriptor, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TagState:
    """What a tag named when it was read; ``version``: how the target calls that state (an ETag), or ""."""

    what: Descriptor
    data: bytes
    version: str = ""


@runtime_checkable
class ReferringTarget(Protocol):
    """A target that can list referrers without the tag."""

    def listed_referrers(self, subject: Descriptor, artifact_type: str) -> Listing | None:
        """Those of ``artifact_type``, "" for all, perhaps others too; None when it cannot tell."""


@runtime_checkable
class SwappingTarget(Protocol):
    """A target that changes a tag only if nobody did since it was read, as far as it can."""

    def tag_state(self, tag: str) -> TagState | None:
        """What ``tag`` names; None: nothing."""

    def swap_tag(self, tag: str, what: Descriptor, data: bytes, was: TagState | None) -> Swapped:
        """Store the manifest ``data`` as ``tag`` if that still names ``was``."""


def referrers(
    target: Target, subject: Descriptor, artifact_type: str | None = None, *, at_once: bool = False
) -> tuple[Descriptor, ...]:
    """The referrers of ``subject``, of one type or all, each once, in the order they are listed.

    at_once: do not wait for what the target itself says before the tag is asked: a round trip less where it says no.

    Raises:
        InvalidJson, BadAnswer: a list is malformed. UnavailableError, ...: as any reading.
    """
    ask = partial(tag_state, target, referrers_tag(subject.digest))
    tagged = begun(ask, "referrers").result if at_once else ask
    listing = target.listed_referrers(subject, artifact_type or "") if isinstance(target, ReferringTarget) else None
    found = list(listing.found) if listing else []
    if listing is None or not listing.complete:
        state = tagged()
        found += (state and parse_listed(state.data, subject.digest, source=_where(target, state.what))) or ()
    once: dict[Digest, Descriptor] = {}
    for entry in found:
        if entry.digest != subject.digest and artifact_type in (None, entry.artifact_type):
            once.setdefault(entry.digest, entry)
    return tuple(once.values())


def attach(
    target: Target,
    subject: Descriptor,
    artifact_type: str,
    blobs: Sequence[tuple[Descriptor, Opener]] = (),
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Store ``blobs`` as an artifact of ``subject``, which ``target`` has, and list it; its descriptor as listed.

    Attaching the same again changes nothing.

    Raises:
        NotFound: no such subject. ReferrersTagTaken, ReferrersContended: it is stored but not listed.
    """
    if not target.has(subject):
        raise NotFound(f"{target.name}: no {subject.digest} to attach to", hint="Push the image first.")
    manifest = artifact(artifact_type, [what for what, _ in blobs], subject, annotations or {})
    contents: list[tuple[Descriptor, Opener]] = [*blobs, (EMPTY, partial(io.BytesIO, EMPTY_BYTES))]
    for what, opener in contents:
        target.push(what, opener)
    return attach_manifest(target, subject, manifest.dump())


def attach_manifest(target: Target, subject: Descriptor, data: bytes) -> Descriptor:
    """Store the manifest ``data``, whose blobs ``target`` has, and list it as a referrer of ``subject``.

    Raises:
        ForeignReferrer: it does not name ``subject``. As ``attach``.
    """
    return attach_manifests(target, subject, [data])[0]


def attach_manifests(target: Target, subject: Descriptor, manifests: Sequence[bytes]) -> tuple[Descriptor, ...]:
    """The same for several: the list is changed once, which takes a pause where nobody compares.

    Raises:
        As ``attach_manifest``.
    """
    found = []
    for data in manifests:
        what = as_referrer(data, source=f"{target.name}: referrer")
        _check_subject(parse_document(data, source=target.name), subject, f"{target.name}: {what.digest}")
        target.push(plain(what), partial(io.BytesIO, data))
        found.append(what)
    _enlist(target, subject, found)
    return tuple(found)


def read_referrer(target: Target, what: Descriptor, subject: Descriptor) -> Manifest:
    """The manifest of a listed referrer, verified to be of ``subject``.

    Raises:
        ForeignReferrer: it is of another subject, or an index. DigestMismatch, NotFound: as any reading.
    """
    where = f"{target.name}: {what.digest}"
    document = parse_document(_read(target, what), source=where)
    _check_subject(document, subject, where)
    if not isinstance(document, Manifest):
        raise ForeignReferrer(f"{where}: want an artifact manifest, got an index")
    return document


def unlist(target: Target, subject: Descriptor, gone: Digest) -> None:
    """Take ``gone`` out of the index under the tag; a no-op when it is not in it.

    Raises:
        ReferrersContended: others kept changing it.
    """
    _change(target, subject, lambda listed: tuple(entry for entry in listed if entry.digest != gone))


def _enlist(target: Target, subject: Descriptor, wanted: Sequence[Descriptor]) -> None:
    if isinstance(target, ReferringTarget):
        # Whatever the answer to the push promised (AWS once did, sigstore-js#1183): it counts when it is listed.
        listing = target.listed_referrers(subject, wanted[0].artifact_type if len(wanted) == 1 else "")
        there = {entry.digest for entry in listing.found} if listing else set()
        wanted = [what for what in wanted if what.digest not in there]

    def with_wanted(listed: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
        for what in wanted:
            listed = listed if what in listed else merged(listed, what)
        return listed

    if wanted:
        _change(target, subject, with_wanted)


def _change(
    target: Target,
    subject: Descriptor,
    change: Callable[[tuple[Descriptor, ...]], tuple[Descriptor, ...]],
) -> None:
    """Bring the index under the tag to where ``change`` changes nothing more, whoever else writes."""
    tag = referrers_tag(subject.digest)
    for attempt in range(_ATTEMPTS):
        begun = time.monotonic()
        state = tag_state(target, tag)
        listed = _listed(target, subject, state)
        wanted = change(listed)
        if wanted == listed:
            return
        data = Index(manifests=wanted).dump()
        swapped = swap_tag(target, tag, describe(data, media_types.OCI_INDEX), data, state)
        if swapped == "done":
            return
        took_s = time.monotonic() - begun
        pause_s = _PAUSE_S * (attempt + 1) if swapped == "lost" else _PAUSE_S + _SETTLED * took_s
        time.sleep(pause_s * (0.5 + random.random()))  # noqa: S311  spreads writers, guards nothing
    raise ReferrersContended(f"{target.name}: {tag}: changed {_ATTEMPTS} times by others", hint="Attach it again.")


def _listed(target: Target, subject: Descriptor, state: TagState | None) -> tuple[Descriptor, ...]:
    if state is None:
        return ()
    listed = parse_listed(state.data, subject.digest, source=_where(target, state.what))
    if listed is None:
        raise ReferrersTagTaken(
            f"{target.name}: want an index of referrers as {referrers_tag(subject.digest)}, got {state.what.digest}",
            hint="Use a registry with the referrers API, or give that tag's image another tag.",
        )
    return listed


def tag_state(target: Target, tag: str) -> TagState | None:
    """What ``tag`` names in any target, with its bytes; None: nothing."""
    if isinstance(target, SwappingTarget):
        return target.tag_state(tag)
    try:
        what = target.lookup(tag)
    except NotFound:
        return None
    return TagState(what=what, data=_read(target, what))


def swap_tag(target: Target, tag: str, what: Descriptor, data: bytes, was: TagState | None) -> Swapped:
    """Store the manifest ``data`` as ``tag``, if the target can tell only while that names ``was``."""
    if isinstance(target, SwappingTarget):
        return target.swap_tag(tag, what, data, was)
    target.push(what, partial(io.BytesIO, data))
    target.tag(what, tag)
    return "unsure"


def _read(target: Target, what: Descriptor) -> bytes:
    return fetch_whole(target, what, MAX_MANIFEST_SIZE, InvalidJson)


def _where(target: Target, what: Descriptor) -> str:
    return f"{target.name}: {what.digest}"


def _check_subject(document: Manifest | Index, subject: Descriptor, where: str) -> None:
    if document.subject is None or document.subject.digest != subject.digest:
        got = document.subject.digest if document.subject else "none"
        raise ForeignReferrer(f"{where}: want the subject {subject.digest}, got {got}")
