"""Resolve: a reference that was looked up once becomes a pinned image and a start plan."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.image.inspect import open_image
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.oci.tables import has_table, have_tables
from envbuilder.resolve.model import Resolution
from envbuilder.store.referrers import referrers
from envbuilder.store.target import Target

_log = logging.getLogger(__name__)


def resolve(
    target: Target, what: Descriptor, platform: Platform, *, asked: str, pinned: str, believes_indexes: bool = False
) -> Resolution:
    """How a job on ``platform`` starts ``what`` of ``target``.

    Manifests and config are read and verified; no layer is. believes_indexes: the node reads layers of others through
    checkpoint indexes that lie beside them; only then they are looked for, layer by layer until one has none.

    Raises:
        NoSuchPlatform: the image is not built for it. BrokenImage, DigestMismatch: it is damaged.
    """
    image = open_image(target, what, platform)
    manifest = image.manifest
    start = "lazy"
    if image.lazy:
        why = "the image has EROFS metadata and chunk indexes for the same layers"
    elif have_tables(manifest.layers):
        why = "the image has no EROFS manifest, but each layer has a table of contents of its own"
    elif believes_indexes and _are_indexed(target, manifest.layers):
        why = "the image has no EROFS manifest, but each layer has a table of contents or an index beside it"
    else:
        start, why = "full", "the image has no EROFS manifest: it is pulled whole"
    return Resolution(
        asked=asked,
        pinned=pinned,
        platform=platform,
        image=what,
        manifest=image.descriptor,
        lazy=image.lazy.descriptor if image.lazy else None,
        start=start,
        layers=len(manifest.layers),
        size=manifest.config.size + sum(layer.size for layer in manifest.layers),
        labels=dict(image.config.labels),
        annotations=dict(image.annotations),
        why=why,
    )


def _are_indexed(target: Target, layers: Sequence[Descriptor]) -> bool:
    """Whether each layer has a table, or an index beside it; what cannot be asked is none, as a start would find."""
    try:
        return bool(layers) and all(
            has_table(layer) or referrers(target, layer, media_types.FOREIGN_INDEX_ARTIFACT) for layer in layers
        )
    except EnvbuilderError as error:
        _log.info("%s: no index: %s", target.name, error)
        return False
