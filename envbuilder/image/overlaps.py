"""Packages that cannot be in one image: found before a build in those that are here, behind it in the paths written."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from envbuilder.digest import Digest
from envbuilder.layer.computed import check_packages
from envbuilder.layer.deb import control_of
from envbuilder.layer.model import Layer, Recipe
from envbuilder.layer.plan import WheelPlan, check_wheels
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.source import ArtifactSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """Packages that were checked, those that are not here, and pairs of paths that only case or Unicode tells apart."""

    read: int
    unread: int
    twins: tuple[str, ...]


def check_here(
    lock: Lock, plans: Sequence[Recipe], artifacts: ArtifactSource, is_here: Callable[[Artifact], bool]
) -> Looked:
    """Check the packages of ``lock`` that ``is_here`` names, by their directories and checksums, as a build would.

    Raises:
        Conflict: two wheels have different files at one path. UnknownScript, SharedPath, InPrefix, DivertedPath:
        of Debian packages, as ``check_packages``. Whatever is wrong with a package itself.
    """
    debs = [deb for deb in lock.debs if is_here(deb)]
    wheels = {wheel.digest for wheel in lock.wheels if is_here(wheel)}
    check_packages((control_of(artifacts.file(deb)) for deb in debs), allow=frozenset(lock.allow_scripts))
    found = check_wheels([each for each in plans if isinstance(each, WheelPlan)], artifacts, only=wheels)
    read = len(debs) + len(wheels)
    return Looked(read=read, unread=len(lock.debs) + len(lock.wheels) - read, twins=found)


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
        # What a child hides of its parent is in no one's way.
        check_wheels(suspects.values(), artifacts, only={wheel.digest for wheel in lock.wheels})
