"""Which layer holds which artefact: big ones alone, those of one release together, the rest in buckets. Pure.

Measured on six monthly locks of an AI environment (build.md 4.1, bench/partition.py): this pushes 1 to 2 % more
than one layer for each package, with half the layers that a registry takes in place of 167. An assignment, once made,
is kept: a re-lock moves no package that stays, so a change of these rules never reshuffles an old image. Only
one that grew past 100 MB leaves its bucket, which its new version would send anyway.

The largest goes first, each to the emptiest bucket: a bump then sends about the same whichever package it is
(decision 10). What counts is a layer's size, not a wheel's: a pure wheel's modules are there twice, the second time
compiled.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.lock.families import family
from envbuilder.lock.model import Artifact, Deb, ForeignSystem, Lock, Partition, Wheel

#: Layers of an image, the computed ones included: fewer than 64, half of what containerd takes (127).
MAX_LAYERS = 63
#: Layers that a child may add to a parent that has used up ``MAX_LAYERS``, and where that ends too.
_MAX_ADDED, _MOST_LAYERS = 16, 120
#: Layers that a first lock leaves free, for big packages that are added later.
_SPARE = 2
#: Bytes of a layer: an artefact that makes as many or more has its own (build.md 4.2).
THRESHOLD = 5_000_000
#: Bytes of a package that leaves its bucket when it has grown: a second or so of one core to unpack.
_GIANT = 100_000_000
#: Bytes that a pure wheel becomes in a layer, in tenths of its size; measured on the buckets of ``ai``: 20 to 23.
_PURE_GROWTH = 22
#: Buckets at most, fewer before big wheels give up their layers, and the bytes that are worth one.
_MAX_WHEEL_BUCKETS, _MIN_WHEEL_BUCKETS, _MAX_DEB_BUCKETS, _BUCKET_SIZE = 32, 16, 3, 3_000_000
#: Bytes of a layer of one release at most; a single package may have more.
_SHARED_SIZE = 600_000_000
#: Ids with a meaning of their own, which a package of that name must not get.
_RESERVED = re.compile(r"(?:top|removed|(?:base|wheels|debs)-[0-9]+)\Z")
#: Layers of one release: wheels' names have no dot (PEP 503), so none of a package is called so.
_SHARED = ".set-"
#: Id of the layer of environment ``x`` that hides packages of the parent is ``x/removed``.
REMOVED = "/removed"


class TooManyLayers(SpecError):
    """The parent leaves no room below the limit of layers."""


def base_ids(name: str, system: ForeignSystem | None) -> tuple[str, ...]:
    """Ids of the layers of environment ``name`` that are those of the image that it is laid over."""
    count = len(system.base.layers) if system and system.base else 0
    return tuple(f"{name}/base-{number:02}" for number in range(count))


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
    system: ForeignSystem | None = None,
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
        system: what the environment itself is laid over; a parent's layers have it already.
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
    before = parent.layers if parent else base_ids(name, system)
    limit = max_layers or min(_MOST_LAYERS, max(MAX_LAYERS, len(before) + _MAX_ADDED)) - (0 if existing else _SPARE)
    total = _size(artifacts)
    first = existing.partition if existing else _rule(own, total)
    for rule in _rules(first, own, total, fixed_buckets=existing is not None):
        layers = inherited | _place(name, own, kept, rule, total)
        if len({*before, *removed, *layers.values()}) + 1 <= limit:
            break
    else:
        if existing:  # better to move packages than to give no image
            return assign(name, wheels, debs, parent=parent, system=system, max_layers=max_layers)
        raise TooManyLayers(
            f"{name}: want at most {limit} layers, the parent or the base alone has {len(before)}",
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


def _kind(artifact: Artifact) -> str:
    return "debs" if isinstance(artifact, Deb) else "wheels"


def _key(artifact: Artifact) -> tuple[str, str]:
    return _kind(artifact), artifact.name


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
    name: str, own: Sequence[Artifact], kept: Mapping[tuple[str, str], str], rule: Partition, total: int
) -> dict[tuple[str, str], str]:
    """The layer of each artefact of ``own``: where it is ``kept``, one for its release, or the emptiest bucket.

    total: bytes of the whole image.
    """
    buckets = {
        kind: [f"{name}/{kind}-{number:02}" for number in range(count)]
        for kind, count in (("debs", rule.deb_buckets), ("wheels", rule.wheel_buckets))
    }
    layers = {key: kept[key] for artifact in own if (key := _key(artifact)) in kept}
    load: Counter[str] = Counter()
    homes: dict[tuple[str, str], str] = {}  # layers of several packages, by the releases that are there already
    for artifact in own:
        if layer := layers.get(_key(artifact)):
            load[layer] += layer_size(artifact)
            if _SHARED in layer or _RESERVED.match(layer.rpartition("/")[2]):
                group = (_kind(artifact), family(artifact))
                homes[group] = min(layer, homes.get(group, layer))
    units = _units([artifact for artifact in own if _key(artifact) not in kept], total)
    for unit in sorted(units, key=lambda unit: (-_size(unit), _key(unit[0]))):
        kind = _kind(unit[0])
        if _size(unit) >= rule.threshold:
            layer = f"{name}/{_own_layer(unit)}" if len(unit) == 1 else _shared_layer(name, unit, load)
        else:
            home = homes.get((kind, family(unit[0])))
            layer = home or min(buckets[kind], key=lambda bucket: load[bucket])
        load[layer] += _size(unit)
        layers |= {_key(artifact): layer for artifact in unit}
    return layers


def _units(artifacts: Sequence[Artifact], total: int) -> Iterator[tuple[Artifact, ...]]:
    """What goes to one layer together: a release, in parts if it is large, but none that would hold up a pull."""
    groups: defaultdict[tuple[str, str], list[Artifact]] = defaultdict(list)
    for artifact in artifacts:
        groups[_kind(artifact), family(artifact)].append(artifact)
    for members in groups.values():
        parts: list[list[Artifact]] = [[] for _ in range(1 + sum(map(layer_size, members)) // _SHARED_SIZE)]
        for artifact in sorted(members, key=lambda artifact: (-layer_size(artifact), artifact.name)):
            min(parts, key=_size).append(artifact)
        if any(len(part) > 1 and _size(part) > max(_GIANT, total // 3) for part in parts):
            parts = [[artifact] for artifact in members]
        yield from map(tuple, filter(None, parts))


def _size(artifacts: Iterable[Artifact]) -> int:
    return sum(map(layer_size, artifacts))


def layer_size(artifact: Artifact) -> int:
    """Bytes that ``artifact`` will have in a layer, estimated from its own."""
    pure = isinstance(artifact, Wheel) and artifact.file.endswith("-none-any.whl")
    return artifact.size * _PURE_GROWTH // 10 if pure else artifact.size


def _own_layer(unit: Sequence[Artifact]) -> str:
    (artifact,) = unit
    if isinstance(artifact, Deb):
        return f"{artifact.name}.deb"  # a wheel's name has no dot (PEP 503), so they never meet
    return f"{artifact.name}.whl" if _RESERVED.match(artifact.name) else artifact.name


def _shared_layer(name: str, unit: Sequence[Artifact], taken: Container[str]) -> str:
    """A layer for several packages of one release, or the next one of it."""
    end = ".deb" if isinstance(unit[0], Deb) else ""
    ids = (f"{name}/{family(unit[0])}{_SHARED}{number}{end}" for number in count())
    return next(layer for layer in ids if layer not in taken)


def _rule(own: Sequence[Artifact], total: int) -> Partition:
    small: Counter[str] = Counter()
    for unit in _units(own, total):
        if _size(unit) < THRESHOLD:
            small[_kind(unit[0])] += _size(unit)
    return Partition(
        threshold=THRESHOLD,
        wheel_buckets=min(max(-(-small["wheels"] // _BUCKET_SIZE), 1), _MAX_WHEEL_BUCKETS),
        deb_buckets=min(max(-(-small["debs"] // _BUCKET_SIZE), 1), _MAX_DEB_BUCKETS),
    )


def _rules(rule: Partition, own: Sequence[Artifact], total: int, *, fixed_buckets: bool) -> Iterator[Partition]:
    """``rule``, then rules that give fewer layers: fewer buckets, then one more of the big ones in its bucket."""
    yield rule
    while not fixed_buckets and rule.wheel_buckets > _MIN_WHEEL_BUCKETS:
        rule = replace(rule, wheel_buckets=rule.wheel_buckets - 1)
        yield rule
    for size in sorted({size for unit in _units(own, total) if (size := _size(unit)) >= rule.threshold}):
        rule = replace(rule, threshold=size + 1)
        yield rule
    while not fixed_buckets and rule.wheel_buckets + rule.deb_buckets > 2:
        wheels, debs = max(rule.wheel_buckets // 2, 1), max(rule.deb_buckets // 2, 1)
        rule = replace(rule, wheel_buckets=wheels, deb_buckets=debs)
        yield rule
