"""Make the documents of an image and attach them: locks, SBOMs, provenance.

Imported by a build only when they are not there yet: the CycloneDX library takes 0.1 s to load.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial

from envbuilder.digest import Descriptor, describe
from envbuilder.image.base_packages import base_packages
from envbuilder.image.licences import licences
from envbuilder.image.provenance import provenance
from envbuilder.image.sbom import cyclonedx, spdx
from envbuilder.layer.model import Layer
from envbuilder.lock.codec import dump
from envbuilder.lock.model import Lock
from envbuilder.oci import media_types
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import attach
from envbuilder.store.target import Target


def attach_documents(
    store: LayoutTarget, locks: Sequence[Lock], subject: Descriptor, layers: Sequence[Layer]
) -> tuple[Descriptor, ...]:
    """Attach the locks, both SBOMs and the provenance to the image ``subject`` of ``layers``, which is in ``store``."""
    known, lock = licences(layers, store), locks[-1]
    theirs = base_packages([layer for layer in layers if layer.theirs], store)
    documents: tuple[tuple[str, str, list[tuple[str, bytes]]], ...] = (
        (media_types.LOCK_ARTIFACT, media_types.LOCK_TOML, [(f"{each.name}.lock.toml", dump(each)) for each in locks]),
        (
            media_types.CYCLONEDX,
            media_types.CYCLONEDX,
            [("sbom.cdx.json", cyclonedx(lock, subject.digest, known, theirs))],
        ),
        (media_types.SPDX, media_types.SPDX, [("sbom.spdx.json", spdx(lock, subject.digest, known, theirs))]),
        (media_types.IN_TOTO, media_types.IN_TOTO, [("provenance.json", provenance(locks, subject, layers))]),
    )
    return tuple(attach_document(store, subject, kind, media_type, parts) for kind, media_type, parts in documents)


def attach_document(
    target: Target, subject: Descriptor, kind: str, media_type: str, parts: Sequence[tuple[str, bytes]]
) -> Descriptor:
    """Attach a document of type ``kind`` to ``subject``, one blob for each (name, bytes)."""
    blobs = [(describe(data, media_type, annotations={media_types.TITLE: name}), data) for name, data in parts]
    return attach(target, subject, kind, [(what, partial(io.BytesIO, data)) for what, data in blobs])
