"""Why a layer must be made: what differs from the plans of an earlier lock. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuilder.layer.base import BasePlan
from envbuilder.layer.plan import AnyPlan
from envbuilder.layer.top import TopPlan
from envbuilder.lock.model import Artifact

#: Artefacts that one reason lists; the rest is counted.
_SHOWN = 6


def reasons(before: Sequence[AnyPlan], after: Sequence[AnyPlan]) -> dict[str, str]:
    """For each layer of ``after``: why its bytes are not those of a layer of ``before``; "" when they are."""
    keys, old = {plan.key for plan in before}, {plan.id: plan for plan in before}
    return {plan.id: "" if plan.key in keys else _reason(old.get(plan.id), plan) for plan in after}


def _reason(was: AnyPlan | None, now: AnyPlan) -> str:
    if was is None:
        return "a new layer"
    if isinstance(now, TopPlan) or isinstance(was, TopPlan):
        if isinstance(was, TopPlan) and isinstance(now, TopPlan) and was.below == now.below:
            return "its files or the Debian packages changed"
        return "computed from the layers below it, which change"
    if isinstance(now, BasePlan) or isinstance(was, BasePlan):
        return "the base has another layer there"
    lines = list(_changes(_own(was), _own(now)))
    if not lines:
        return "the interpreter that compiles, or the rules by which layers are written, changed"
    more = f", and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return ", ".join(lines[:_SHOWN]) + more


def _own(plan: AnyPlan) -> tuple[Artifact, ...]:
    """What goes into the layer; ``artifacts`` also has the interpreter that compiles."""
    return tuple(artifact for artifact in plan.artifacts if artifact.layer == plan.id)


def _changes(before: Sequence[Artifact], after: Sequence[Artifact]) -> Iterator[str]:
    old, new = {each.name: each for each in before}, {each.name: each for each in after}
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was is None and now is not None:
            yield f"+{name} {now.version}"
        elif now is None:
            yield f"-{name}"
        elif was is not None and was.digest != now.digest:
            yield f"{name} {was.version} -> {now.version}" if was.version != now.version else f"{name}: other file"
