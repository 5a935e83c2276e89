"""What a node that has one image must fetch for another, layer by layer. Pure.

A layer is told by a key: that of its plan where both locks' parents are at hand, else the digests of its artefacts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from envbuilder.digest import Digest, canonical_json
from envbuilder.lock.model import Artifact, Lock, Wheel
from envbuilder.lock.partition import layer_size
from envbuilder.lock.predicted import Predicted

State = Literal["same", "moved", "changed", "added", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One layer of a lock: what decides its bytes, and its size in bytes; ``exact`` when somebody built it."""

    id: str
    key: Digest
    size: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChange:
    """A layer of either lock. ``moved``: the same bytes under another name. Sizes are 0 where it is not."""

    id: str
    state: State
    before: int
    after: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactChange:
    """An artefact that is not the same in both locks; version "" and size 0 where it is not there."""

    kind: Literal["wheel", "deb"]
    name: str
    before: str
    after: str
    size_before: int
    size_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``fetch``: bytes that a node with the first image lacks of the second; ``exact``: none of them is estimated."""

    artifacts: tuple[ArtifactChange, ...]
    layers: tuple[LayerChange, ...]
    fetch: int
    exact: bool


def pieces(
    lock: Lock, *, keys: Mapping[str, Digest] | None = None, predicted: Predicted | None = None
) -> tuple[Piece, ...]:
    """The layers of ``lock``, base first.

    keys: plan key by layer id, where the locks of the parents are known. predicted: sizes of those that were built.
    """
    built = predicted.layers if predicted else ()
    known, named = {layer.key: layer.size for layer in built}, {layer.id: layer.size for layer in built}
    content: dict[str, list[Artifact]] = {layer: [] for layer in lock.layers}
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs]
    for artifact in artifacts:
        content[artifact.layer].append(artifact)
    found = []
    for layer, inside in content.items():
        key = keys[layer] if keys else _content_key(lock, layer, inside)
        size = known.get(key)
        # What is computed from the whole has no artefacts of its own: about as large as it was before.
        estimate = sum(map(layer_size, inside)) if inside else named.get(layer, 0)
        found.append(Piece(id=layer, key=key, size=estimate if size is None else size, exact=size is not None))
    return tuple(found)


def _content_key(lock: Lock, layer: str, inside: Sequence[Artifact]) -> Digest:
    # A computed layer depends on all that is below it.
    below = [str(each.digest) for each in (inside or (*lock.wheels, *lock.debs))]
    return Digest.of(canonical_json([lock.python.tag, *([] if inside else [layer]), *sorted(below)]))


def difference(before: Lock, after: Lock, old: Sequence[Piece], new: Sequence[Piece]) -> Difference:
    """What is not in ``before`` as it is in ``after``; ``old`` and ``new`` are their pieces."""
    there, was, now = {piece.key: piece for piece in old}, {p.id: p for p in old}, {p.id: p for p in new}
    layers = [_layer(piece, was.get(piece.id), there.get(piece.key)) for piece in new]
    layers += [
        LayerChange(id=piece.id, state="removed", before=piece.size, after=0, exact=piece.exact)
        for piece in old
        if piece.id not in now
    ]
    fetched = [piece for piece in new if piece.key not in there]
    return Difference(
        artifacts=_artifacts(before, after),
        layers=tuple(layers),
        fetch=sum(piece.size for piece in fetched),
        exact=all(piece.exact for piece in fetched),
    )


def _layer(piece: Piece, was: Piece | None, same: Piece | None) -> LayerChange:
    state: State = ("same" if same.id == piece.id else "moved") if same else "changed" if was else "added"
    old = same or was
    exact = piece.exact and (old is None or old.exact)
    return LayerChange(id=piece.id, state=state, before=old.size if old else 0, after=piece.size, exact=exact)


def _artifacts(before: Lock, after: Lock) -> tuple[ArtifactChange, ...]:
    old, new = _by_name(before), _by_name(after)
    found = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if was and now and was.digest == now.digest:
            continue
        found.append(
            ArtifactChange(
                kind="deb" if key[0] else "wheel",
                name=key[1],
                before=was.version if was else "",
                after=now.version if now else "",
                size_before=was.size if was else 0,
                size_after=now.size if now else 0,
            )
        )
    return tuple(found)


def _by_name(lock: Lock) -> dict[tuple[bool, str], Artifact]:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs]
    return {(not isinstance(artifact, Wheel), artifact.name): artifact for artifact in artifacts}
