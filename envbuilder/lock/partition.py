"""Which layer holds which artefact: big ones alone, the rest in buckets that the hash of the name offers. Pure.

Measured on six monthly locks of an AI environment (build.md 4.1): this pushes 1 to 5 % more than one
layer for each package, with 45 layers in place of 167. An assignment, once made, is kept: a re-lock
moves no package that stays, so a change of these rules never reshuffles an old image. Only one that grew
past 100 MB leaves its bucket, which its new version would send anyway.

A hash alone fills buckets unevenly. In the AI lock of 2026-11-30 the largest of 16 has 12.9 MB, so one
small bump sends as much; the emptiest of two that the hash offers gives 9.1, of three 5.7, of all 5.7.

What counts is a layer's size, not a wheel's: a pure wheel's modules are there twice, the second time
compiled. By the size of wheels alone, buckets of 6 MB became layers of 11 to 14 MB.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.lock.model import Artifact, Deb, Lock, Partition, Wheel

#: Layers of an image, the computed ones included: fewer than 64, half of what containerd takes (127).
MAX_LAYERS = 63
#: Layers that a child may add to a parent that has used up ``MAX_LAYERS``, and where that ends too.
_MAX_ADDED, _MOST_LAYERS = 16, 120
#: Layers that a first lock leaves free, for big packages that are added later.
_SPARE = 2
#: Buckets that the hash of a name offers; the emptiest is taken.
_OFFERED = 3
#: Bytes of a layer: an artefact that makes as many or more has its own (build.md 4.2).
THRESHOLD = 5_000_000
#: Bytes of a package that leaves its bucket when it has grown: a second or so of one core to unpack.
_GIANT = 100_000_000
#: Bytes that a pure wheel becomes in a layer, in tenths of its size; measured on the buckets of ``ai``: 20 to 23.
_PURE_GROWTH = 22
#: Buckets at most (build.md 4.2), and the bytes that are worth one: a small environment gets few layers.
_MAX_WHEEL_BUCKETS, _MAX_DEB_BUCKETS, _BUCKET_SIZE = 16, 4, 3_000_000
#: Ids with a meaning of their own, which a package of that name must not get.
_RESERVED = re.compile(r"(?:top|removed|wheels-[0-9]+|debs-[0-9]+)\Z")
#: Id of the layer of environment ``x`` that hides packages of the parent is ``x/removed``.
REMOVED = "/removed"


class TooManyLayers(SpecError):
    """The parent leaves no room below the limit of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What ``assign`` decides: the artefacts with their layers, the layers in order, the rule for the next."""

    layers: tuple[str, ...]
    wheels: tuple[Wheel, ...]
    debs: tuple[Deb, ...]
    partition: Partition


def assign(
    name: str,
    wheels: Sequence[Wheel],
    debs: Sequence[Deb],
    *,
    existing: Lock | None = None,
    parent: Lock | None = None,
    max_layers: int = 0,
) -> Assignment:
    """Give every artefact of environment ``name`` to a layer.

    An artefact that the parent has, the same bytes, stays in the parent's layer; one that ``existing`` has, in its
    layer there. The rest follows the rule of ``existing``, or one chosen from the sizes.

    Args:
        name: the environment's.
        wheels: all of the image, the parent's included.
        debs: all of the image, the parent's included.
        existing: the environment's lock as it is.
        parent: the parent's lock.
        max_layers: most layers of the image; 0 for the limits of this module.

    Raises:
        TooManyLayers: the parent has so many that no rule keeps the limit.
    """
    artifacts: list[Artifact] = [*wheels, *debs]
    theirs, there = _digests(parent), _layers_in(parent)
    same = [key for artifact in artifacts if theirs.get(key := _key(artifact)) == artifact.digest]
    inherited = {key: there[key] for key in same}
    own = [artifact for artifact in artifacts if _key(artifact) not in inherited]
    # What the parent has and this image has not must be hidden by a layer of its own.
    removed = (f"{name}{REMOVED}",) if len(inherited) < len(theirs) else ()
    kept = {key: layer for key, layer in _layers_in(existing).items() if layer.startswith(f"{name}/")}
    for key in _grown(own, existing):
        kept.pop(key, None)
    before = parent.layers if parent else ()
    limit = max_layers or min(_MOST_LAYERS, max(MAX_LAYERS, len(before) + _MAX_ADDED)) - (0 if existing else _SPARE)
    for rule in _rules(existing.partition if existing else _rule(own), own, fixed_buckets=existing is not None):
        layers = inherited | _place(name, own, kept, rule)
        if len({*before, *removed, *layers.values()}) + 1 <= limit:
            break
    else:
        if existing:  # better to move packages than to give no image
            return assign(name, wheels, debs, parent=parent, max_layers=max_layers)
        raise TooManyLayers(
            f"{name}: want at most {limit} layers, the parent alone has {len(before)}",
            hint="Extend an environment with fewer layers.",
        )
    new_debs = {layers[_key(deb)] for deb in debs} - {*before}
    new_wheels = {layers[_key(wheel)] for wheel in wheels} - {*before}
    return Assignment(
        layers=(
            *before,
            *removed,
            *sorted(new_debs, key=_buckets_first),
            *sorted(new_wheels, key=_buckets_last),
            f"{name}/top",
        ),
        wheels=tuple(sorted((replace(w, layer=layers[_key(w)]) for w in wheels), key=lambda wheel: wheel.name)),
        debs=tuple(sorted((replace(d, layer=layers[_key(d)]) for d in debs), key=lambda deb: deb.name)),
        partition=rule,
    )


def _key(artifact: Artifact) -> tuple[str, str]:
    return ("deb" if isinstance(artifact, Deb) else "wheel", artifact.name)


def _digests(lock: Lock | None) -> dict[tuple[str, str], Digest]:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs] if lock else []
    return {_key(artifact): artifact.digest for artifact in artifacts}


def _grown(own: Sequence[Artifact], existing: Lock | None) -> set[tuple[str, str]]:
    """Packages that have become so big that their bucket would hold up a pull; it changes anyway, for they did."""
    theirs, there = _digests(existing), _layers_in(existing)
    return {
        key
        for artifact in own
        if layer_size(artifact) >= _GIANT
        and theirs.get(key := _key(artifact), artifact.digest) != artifact.digest
        and _RESERVED.match(there[key].rpartition("/")[2])
    }


def _layers_in(lock: Lock | None) -> dict[tuple[str, str], str]:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs] if lock else []
    return {_key(artifact): artifact.layer for artifact in artifacts}


def _buckets_first(layer: str) -> tuple[bool, str]:
    return (not _RESERVED.match(layer.rpartition("/")[2]), layer)


def _buckets_last(layer: str) -> tuple[bool, str]:
    return (bool(_RESERVED.match(layer.rpartition("/")[2])), layer)


def _place(
    name: str, own: Sequence[Artifact], kept: Mapping[tuple[str, str], str], rule: Partition
) -> dict[tuple[str, str], str]:
    """The layer of each artefact of ``own``: where it is ``kept``, its own, or the emptiest bucket offered to it."""
    layers: dict[tuple[str, str], str] = {}
    groups: dict[tuple[str, str], list[Artifact]] = {}
    load: Counter[str] = Counter()
    for artifact in own:
        layer = kept.get(_key(artifact)) or (
            f"{name}/{_own_layer(artifact)}" if layer_size(artifact) >= rule.threshold else ""
        )
        if layer:
            layers[_key(artifact)] = layer
            load[layer] += layer_size(artifact)
        else:
            # Packages of one Debian source change together (apko's rule, build.md 4.3), so they stay together.
            group = ("debs", artifact.source) if isinstance(artifact, Deb) else ("wheels", artifact.name)
            groups.setdefault(group, []).append(artifact)
    together = {
        artifact.source: layers[_key(artifact)]
        for artifact in sorted(own, key=lambda artifact: artifact.name)
        if isinstance(artifact, Deb) and layers.get(_key(artifact), "").startswith(f"{name}/debs-")
    }
    sizes = {group: sum(layer_size(artifact) for artifact in members) for group, members in groups.items()}
    for kind, member in sorted(groups, key=lambda group: (-sizes[group], group)):
        buckets = rule.deb_buckets if kind == "debs" else rule.wheel_buckets
        offered = [f"{name}/{kind}-{number:02}" for number in offered_buckets(member, buckets)]
        layer = (together.get(member) if kind == "debs" else None) or min(offered, key=lambda layer: load[layer])
        load[layer] += sizes[kind, member]
        layers |= {_key(artifact): layer for artifact in groups[kind, member]}
    return layers


def layer_size(artifact: Artifact) -> int:
    """Bytes that ``artifact`` will have in a layer, estimated from its own."""
    pure = isinstance(artifact, Wheel) and artifact.file.endswith("-none-any.whl")
    return artifact.size * _PURE_GROWTH // 10 if pure else artifact.size


def _own_layer(artifact: Artifact) -> str:
    if isinstance(artifact, Deb):
        return f"{artifact.name}.deb"  # a wheel's name has no dot (PEP 503), so they never meet
    return f"{artifact.name}.whl" if _RESERVED.match(artifact.name) else artifact.name


def offered_buckets(name: str, buckets: int) -> tuple[int, ...]:
    """The buckets offered to ``name``: words of its sha256, each a number modulo ``buckets``."""
    digest = hashlib.sha256(name.encode()).digest()
    return tuple(int.from_bytes(digest[8 * at : 8 * at + 8], "big") % buckets for at in range(_OFFERED))


def _rule(own: Sequence[Artifact]) -> Partition:
    small = [artifact for artifact in own if layer_size(artifact) < THRESHOLD]
    small_wheels = sum(layer_size(artifact) for artifact in small if isinstance(artifact, Wheel))
    small_debs = sum(layer_size(artifact) for artifact in small if isinstance(artifact, Deb))
    return Partition(
        threshold=THRESHOLD,
        wheel_buckets=_buckets(small_wheels, _MAX_WHEEL_BUCKETS),
        deb_buckets=_buckets(small_debs, _MAX_DEB_BUCKETS),
    )


def _buckets(size: int, most: int) -> int:
    count = 1
    while count < most and count * _BUCKET_SIZE < size:
        count *= 2
    return count


def _rules(rule: Partition, own: Sequence[Artifact], *, fixed_buckets: bool) -> Iterator[Partition]:
    """``rule``, then rules that give fewer layers: one more big artefact in its bucket, then fewer buckets."""
    yield rule
    for size in sorted({size for artifact in own if (size := layer_size(artifact)) >= rule.threshold}):
        rule = replace(rule, threshold=size + 1)
        yield rule
    while not fixed_buckets and rule.wheel_buckets + rule.deb_buckets > 2:
        wheels, debs = max(rule.wheel_buckets // 2, 1), max(rule.deb_buckets // 2, 1)
        rule = replace(rule, wheel_buckets=wheels, deb_buckets=debs)
        yield rule
