"""Packages of different layers at one path: found in the paths that were written, decided by the wheels themselves."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from envbuilder.digest import Digest
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import WheelPlan, check_wheels
from envbuilder.lock.model import Lock
from envbuilder.lock.source import ArtifactSource


def check_overlaps(
    lock: Lock,
    plans: Sequence[WheelPlan],
    layers: Mapping[str, Layer],
    artifacts: ArtifactSource,
    *,
    agreed: AbstractSet[Digest],
) -> None:
    """Check ``layers``, by id, of ``plans`` against each other; within a layer its own plan checked.

    agreed: keys of layers that an earlier image of these had together: it was checked, and a machine
        that has no wheels need not fetch them to say the same again.

    Raises:
        Conflict: two packages claim one path with different bytes. Whatever fetching raises.
    """
    keys = {each.id: each.key for each in plans}
    owners: dict[str, WheelPlan] = {}
    suspects: dict[str, WheelPlan] = {}
    for each in plans:
        for placed in layers[each.id].placed:
            if stat.S_ISDIR(placed.mode):
                continue
            other = owners.setdefault(placed.path, each)
            if other is not each and not {keys[each.id], keys[other.id]} <= agreed:
                suspects[each.id], suspects[other.id] = each, other
    if suspects:
        here = {wheel.digest for wheel in lock.wheels}  # what a child hides of its parent is in no one's way
        wheels = [wheel for each in suspects.values() for wheel in each.wheels if wheel.digest in here]
        check_wheels(wheels, artifacts, plans[0].compilation.python)
