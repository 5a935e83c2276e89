"""What monthly upgrades push again, by the way artefacts are given to layers: real locks of an AI environment replayed.

``history/ai-<date>.txt`` are the wheels of build.md's AI input as the index had them on that day (uv pip compile
--exclude-newer, everything upgraded): name, version, file, bytes, sha256. Each month is locked over the one before
with ``lock.partition.assign``; a layer whose set of digests is new is pushed. Bytes are those of the wheels.
Nothing is fetched or built, so the environment and coldness do not matter.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TypeAlias

from record import HERE, Outcome, Target
from scratch import Bench, Unavailable

from envbuilder.digest import Digest
from envbuilder.lock.model import Lock, Wheel
from envbuilder.lock.partition import assign
from envbuilder.testing.locks import SMALL

#: Name of a layer -> digests of its artefacts.
Layers: TypeAlias = dict[str, frozenset[Digest]]
_HISTORY = HERE / "history"
_BIG, _MEGABYTE = 10_000_000, 1e6
#: Limits of the issue: by default, ever, bytes of one layer.
_DEFAULT_LAYERS, _MOST_LAYERS, _MOST_BYTES = 63, 127, 10_000_000_000


def run(bench: Bench) -> Outcome:  # noqa: ARG001  a scenario's signature
    months = [_read(file) for file in sorted(_HISTORY.glob("ai-*.txt"))]
    if len(months) < 2:
        raise Unavailable(f"{_HISTORY}: want two months or more, got {len(months)}")
    columns: dict[str, dict[str, float | str]] = {}
    replayed = {name: _replay(months, rule) for name, rule in _RULES.items()}
    for name, layers in replayed.items():
        pushes = [_pushed(before, after, months[n + 1]) for n, (before, after) in enumerate(pairwise(layers))]
        bumps = _bumps(months[-1], layers[-1])
        columns[name] = {
            **{f"month {n + 1} MB": round(size / _MEGABYTE, 1) for n, size in enumerate(pushes)},
            "sum MB": round(sum(pushes) / _MEGABYTE, 1),
            "layers": len(layers[-1]),
            "largest layer MB": round(max(_sizes(layers[-1], months[-1]).values()) / _MEGABYTE, 1),
            "small bump mean MB": round(mean(bumps) / _MEGABYTE, 2),
            "small bump max MB": round(max(bumps) / _MEGABYTE, 2),
        }
    ours, bound = columns["envbuilder"], columns["one layer a wheel"]
    sizes = _sizes(replayed["envbuilder"][-1], months[-1])
    return Outcome(
        columns=columns,
        ratios={name: round(float(column["sum MB"]) / float(ours["sum MB"]), 2) for name, column in columns.items()},
        targets=[
            Target(name="pushed over the lower bound", limit=1.05, got=float(ours["sum MB"]) / float(bound["sum MB"])),
            Target(name="layers by default", limit=_DEFAULT_LAYERS, got=float(ours["layers"])),
            Target(name="bytes of a layer", limit=_MOST_BYTES, got=max(sizes.values())),
            Target(
                name="largest layer over all others together",
                limit=1,
                got=max(sizes.values()) / (sum(sizes.values()) - max(sizes.values())),
            ),
        ],
        notes=[f"{len(months)} locks, {', '.join(str(len(month)) for month in months)} wheels", "bytes of wheels"],
    )


def _read(file: Path) -> tuple[Wheel, ...]:
    rows = (line.split() for line in file.read_text().splitlines())
    return tuple(
        Wheel(name=name, version=version, file=wheel, digest=Digest("sha256:" + sha256), size=int(size), layer="")
        for name, version, wheel, size, sha256 in rows
    )


def _replay(months: Sequence[tuple[Wheel, ...]], rule: Callable[[Sequence[Wheel]], Layers]) -> list[Layers]:
    if rule is _ours:
        return _replay_ours(months)
    return [rule(month) for month in months]


def _ours(_month: Sequence[Wheel]) -> Layers:
    raise NotImplementedError("each month is locked over the one before: _replay_ours")


def _replay_ours(months: Sequence[tuple[Wheel, ...]]) -> list[Layers]:
    existing: Lock | None = None
    found = []
    for month in months:
        assigned = assign("x", month, (), existing=existing)
        existing = replace(SMALL, wheels=assigned.wheels, debs=(), layers=assigned.layers, partition=assigned.partition)
        found.append(_grouped(assigned.wheels, lambda wheel: wheel.layer))
    return found


def _grouped(wheels: Iterable[Wheel], layer: Callable[[Wheel], str]) -> Layers:
    groups: defaultdict[str, set[Digest]] = defaultdict(set)
    for wheel in wheels:
        groups[layer(wheel)].add(wheel.digest)
    return {name: frozenset(digests) for name, digests in groups.items()}


def _bucket(name: str, buckets: int) -> str:
    return f"bucket-{int.from_bytes(hashlib.sha256(name.encode()).digest(), 'big') % buckets}"


def _by_hash(threshold: int, buckets: int) -> Callable[[Sequence[Wheel]], Layers]:
    return lambda month: _grouped(
        month, lambda wheel: wheel.name if wheel.size >= threshold else _bucket(wheel.name, buckets)
    )


def _largest(count: int) -> Callable[[Sequence[Wheel]], Layers]:
    def rule(month: Sequence[Wheel]) -> Layers:
        own = {wheel.name for wheel in sorted(month, key=lambda wheel: -wheel.size)[: count - 1]}
        return _grouped(month, lambda wheel: wheel.name if wheel.name in own else "rest")

    return rule


def _family(month: Sequence[Wheel]) -> Layers:
    def name(wheel: Wheel) -> str:
        return "nvidia" if wheel.name.startswith(("nvidia-", "cuda-")) else wheel.name

    sizes: defaultdict[str, int] = defaultdict(int)
    for wheel in month:
        sizes[name(wheel)] += wheel.size
    own = sorted(sizes, key=lambda each: -sizes[each])[:19]
    return _grouped(month, lambda wheel: name(wheel) if name(wheel) in own else "rest")


_RULES: Mapping[str, Callable[[Sequence[Wheel]], Layers]] = {
    "envbuilder": _ours,
    "single layer": lambda month: _grouped(month, lambda _: "all"),
    "nvidia as one + top 20": _family,
    "top 20 + rest": _largest(20),
    "top 40 + rest": _largest(40),
    ">= 10 MB + 8 by hash": _by_hash(10_000_000, 8),
    ">= 5 MB + 16 by hash": _by_hash(5_000_000, 16),
    "one layer a wheel": lambda month: _grouped(month, lambda wheel: wheel.name),
}


def _sizes(layers: Layers, month: Sequence[Wheel]) -> dict[str, int]:
    size = {wheel.digest: wheel.size for wheel in month}
    return {name: sum(size[digest] for digest in digests) for name, digests in layers.items()}


def _pushed(before: Layers, after: Layers, month: Sequence[Wheel]) -> int:
    sizes, known = _sizes(after, month), {*before.values()}
    return sum(sizes[name] for name, digests in after.items() if digests not in known)


def _bumps(month: Sequence[Wheel], layers: Layers) -> list[int]:
    """Bytes pushed when one wheel below 10 MB changes, for each of them."""
    sizes = _sizes(layers, month)
    owner = {digest: name for name, digests in layers.items() for digest in digests}
    return [sizes[owner[wheel.digest]] for wheel in month if wheel.size < _BIG]
