"""Which manifest of an index is meant for a platform: all that a copy asks of an image, and little to import."""

from __future__ import annotations

from envbuilder.digest import Descriptor
from envbuilder.errors import IntegrityError, SpecError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.oci.platform import Platform
from envbuilder.store.target import Target
from envbuilder.store.whole import fetch_whole

_FROM_ARCHIVE = "Make an image of it: envbuilder build ENV --from-archive REF."


class NoSuchPlatform(SpecError):
    """What was named is, or has, no image for the platform that was asked for."""


class BrokenImage(IntegrityError):
    """An image's documents contradict each other or are larger than any of ours may be."""


def plain_manifest(target: Target, what: Descriptor, platform: Platform) -> Descriptor:
    """The manifest of ``what`` for ``platform`` by which images are known; a manifest, of whatever kind, is its own.

    Raises:
        NotFound, DigestMismatch: from the target. InvalidJson, InvalidDigest: not a document.
        NoSuchPlatform: an index without this platform.
    """
    document = read_document(target, what)
    return what if isinstance(document, Manifest) else choose(target, what, document, platform)[0]


def read_document(target: Target, what: Descriptor) -> Manifest | Index:
    """The manifest or index ``what``.

    Raises:
        BrokenImage: larger than any. NotFound, DigestMismatch: from the target. InvalidJson, InvalidDigest: neither.
    """
    return parse_document(
        fetch_whole(target, what, MAX_MANIFEST_SIZE, BrokenImage), source=f"{target.name}: {what.digest}"
    )


def choose(target: Target, what: Descriptor, index: Index, platform: Platform) -> tuple[Descriptor, Descriptor | None]:
    """The plain and the EROFS manifest for ``platform``; the first that matches is meant (image-index.md)."""
    matching = [child for child in index.manifests if platform.matches(child.platform)]
    plain = [child for child in matching if not _features(child)]
    erofs = [child for child in matching if _features(child) == [media_types.EROFS_OS_FEATURE]]
    if not plain:
        raise no_image(target, what, index, platform)
    return plain[0], erofs[0] if erofs else None


def no_image(target: Target, what: Descriptor, document: Manifest | Index, platform: Platform) -> NoSuchPlatform:
    """The error that says what there is in place of an image for ``platform``."""
    wanted = f"{target.name}: {what.digest}: want an image for {platform}, got"
    if document.artifact_type == media_types.ARTIFACTS:
        return NoSuchPlatform(f"{wanted} an archive of the artefacts of a lock", hint=_FROM_ARCHIVE)
    if isinstance(document, Manifest):
        return NoSuchPlatform(f"{wanted} an artefact of type {document.artifact_type[:100]!r}")
    there = ", ".join(sorted({_name(child) for child in document.manifests})) or "nothing"
    return NoSuchPlatform(f"{wanted} {there}")


def _features(child: Descriptor) -> list[str]:
    features = (child.platform or {}).get("os.features")
    return [str(feature) for feature in features] if isinstance(features, list) else []


def _name(child: Descriptor) -> str:
    platform = child.platform or {}
    return f"{platform.get('os', '?')}/{platform.get('architecture', '?')}"[:60]
