"""What cosign 1 and 2 keep under tags beside an image (signatures, attestations, SBOMs), copied with it.

They are no referrers: the tag ``sha256-HEX.sig`` names a manifest with a layer for each signature
(sigstore/cosign specs/SIGNATURE_SPEC.md). Where the other end has such a tag, its layers and ours are joined.
"""

from __future__ import annotations

import io
from functools import partial

from envbuilder.digest import Descriptor, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.registry.signatures import SignatureContended, signature_config
from envbuilder.store.copy import copy
from envbuilder.store.copy_referrers import manifests_of
from envbuilder.store.movement import Progress
from envbuilder.store.referrers import TagState, swap_tag, tag_state
from envbuilder.store.target import Target

_KINDS = ("sig", "att", "sbom")
_ATTEMPTS = 5


def copy_beside(
    source: Target, root: Descriptor, target: Target, *, progress: Progress | None = None
) -> tuple[tuple[Descriptor, ...], int]:
    """Let ``target``, which has ``root``, have what is kept beside it and its manifests: what that is, bytes moved.

    Raises:
        SignatureContended: others kept changing a tag. As any copy.
    """
    found, moved = [], 0
    for subject in manifests_of(source, root):
        for kind in _KINDS:
            tag = f"sha256-{subject.digest.hex}.{kind}"
            state = tag_state(source, tag)
            if state is None:
                continue
            moved += copy(source, state.what, target, progress=progress, finish=False).copied_bytes
            _join(target, tag, state)
            found.append(state.what)
    return tuple(found), moved


def _join(target: Target, tag: str, ours: TagState) -> None:
    """Let ``tag`` name all layers of ``ours`` and all that it names now."""
    for _ in range(_ATTEMPTS):
        there = tag_state(target, tag)
        layers, theirs = _layers(ours, tag), _layers(there, f"{target.name}: {tag}") if there else ()
        more = tuple(layer for layer in theirs if layer not in layers)
        if there is not None and (there.what.digest == ours.what.digest or set(layers) <= set(theirs)):
            return
        what, data = ours.what, ours.data
        if more:
            config = signature_config((*layers, *more))
            what_config = describe(config, media_types.OCI_CONFIG)
            target.push(what_config, partial(io.BytesIO, config))
            data = Manifest(config=what_config, layers=(*layers, *more)).dump()
            what = describe(data, media_types.OCI_MANIFEST)
        if swap_tag(target, tag, what, data, there) == "done":
            return
    raise SignatureContended(f"{target.name}: {tag}: changed {_ATTEMPTS} times by others", hint="Copy it again.")


def _layers(state: TagState, where: str) -> tuple[Descriptor, ...]:
    document = parse_document(state.data, source=where)
    return document.layers if isinstance(document, Manifest) else ()
