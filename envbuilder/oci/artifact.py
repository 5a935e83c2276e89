"""Artifacts beside an image: the manifest that names its subject, and how such manifests are listed.

Source: OCI image-spec 1.1 manifest.md ("Guidelines for Artifact Usage"), distribution-spec 1.1
("Listing Referrers", "Referrers Tag Schema"). Pure: what the registry or layout does is elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from envbuilder.digest import Descriptor, Digest, InvalidJson, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest, parse_document

#: The blob that stands for a config or layer that is not needed (image-spec manifest.md).
EMPTY_BYTES = b"{}"
EMPTY = describe(EMPTY_BYTES, media_types.OCI_EMPTY)
#: The referrers tag schema, and what cosign keeps under the same name (its SIGNATURE_SPEC.md).
_TAG = re.compile(r"sha256-([0-9a-f]{64})(?:\.(?:sig|att|sbom))?\Z")
_DOCUMENTS = media_types.MANIFESTS | media_types.INDEXES


def referrers_tag(subject: Digest) -> str:
    """The tag whose index lists the referrers of ``subject`` where there is no API."""
    return f"sha256-{subject.hex}"


def subject_of_tag(tag: str) -> Digest | None:
    """Whose referrers or signatures ``tag`` names, if it is such a tag: an image's own tag it is not."""
    match = _TAG.match(tag)
    return Digest(f"sha256:{match[1]}") if match else None


def plain(what: Descriptor) -> Descriptor:
    """``what`` as a subject: media type, digest, size and no more."""
    return Descriptor(media_type=what.media_type, digest=what.digest, size=what.size)


def artifact(
    artifact_type: str, layers: Sequence[Descriptor], subject: Descriptor, annotations: Mapping[str, str]
) -> Manifest:
    """The manifest of an artifact of ``subject``; without layers it gets the empty one, as the image-spec asks."""
    return Manifest(
        config=EMPTY,
        layers=tuple(layers) or (EMPTY,),
        artifact_type=artifact_type,
        subject=plain(subject),
        annotations=annotations,
    )


def as_referrer(data: bytes, *, source: str) -> Descriptor:
    """How an index lists the manifest ``data``: with its annotations and artifact type (distribution-spec 1.1).

    Raises:
        InvalidJson, InvalidDigest: it is no manifest or index.
    """
    document = parse_document(data, source=source)
    artifact_type = document.artifact_type
    if isinstance(document, Manifest):
        artifact_type = artifact_type or document.config.media_type
    return describe(data, document.media_type, annotations=document.annotations, artifact_type=artifact_type)


def parse_listed(data: bytes, subject: Digest, *, source: str) -> tuple[Descriptor, ...] | None:
    """What an index of referrers lists; None when ``data`` is none: another document, or the subject itself.

    GitLab gives the subject for its referrers tag (oras-go#1396), and that may be an index too.

    Raises:
        InvalidJson, InvalidDigest: not a document at all.
    """
    document = parse_document(data, source=source)
    if Digest.of(data) == subject or not isinstance(document, Index):
        return None
    for entry in document.manifests:
        if entry.media_type not in _DOCUMENTS:
            raise InvalidJson(f"{source}: want manifests as referrers, got {entry.media_type[:100]!r}")
    return tuple(entry for entry in document.manifests if entry.digest != subject)


def merged(listed: Iterable[Descriptor], more: Descriptor) -> tuple[Descriptor, ...]:
    """``listed`` and ``more``, each digest once; ``more`` is the newer word about itself."""
    return (*({entry.digest: entry for entry in listed if entry.digest != more.digest}.values()), more)
