"""Resolve: a reference that was looked up once becomes a pinned image and a start plan."""

from __future__ import annotations

from envbuilder.digest import Descriptor
from envbuilder.image.inspect import open_image
from envbuilder.oci.platform import Platform
from envbuilder.oci.tables import have_tables
from envbuilder.resolve.model import Resolution
from envbuilder.store.target import Target


def resolve(target: Target, what: Descriptor, platform: Platform, *, asked: str, pinned: str) -> Resolution:
    """How a job on ``platform`` starts ``what`` of ``target``.

    Manifests and config are read and verified; no layer is.

    Raises:
        NoSuchPlatform: the image is not built for it. BrokenImage, DigestMismatch: it is damaged.
    """
    image = open_image(target, what, platform)
    manifest = image.manifest
    if image.lazy:
        why = "the image has EROFS metadata and chunk indexes for the same layers"
    elif have_tables(manifest.layers):
        why = "the image has no EROFS manifest, but each layer has a table of contents of its own"
    else:
        why = "the image has no EROFS manifest: it is pulled whole"
    return Resolution(
        asked=asked,
        pinned=pinned,
        platform=platform,
        image=what,
        manifest=image.descriptor,
        lazy=image.lazy.descriptor if image.lazy else None,
        start="lazy" if image.lazy or have_tables(manifest.layers) else "full",
        layers=len(manifest.layers),
        size=manifest.config.size + sum(layer.size for layer in manifest.layers),
        labels=dict(image.config.labels),
        annotations=dict(image.annotations),
        why=why,
    )
