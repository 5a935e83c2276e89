"""Packages that cannot be in one image: found before a build in those that are here, behind it in the paths written."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from envbuilder.digest import Digest
from envbuilder.layer.computed import check_packages
from envbuilder.layer.deb import control_of, deb_entries, merged
from envbuilder.layer.debian.overlaps import SharedPath
from envbuilder.layer.model import Layer, Recipe
from envbuilder.layer.plan import DebPlan, WheelPlan, check_wheels
from envbuilder.layer.removal import RemovalPlan
from envbuilder.layer.tree import WHITEOUT, Placed
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
        Conflict: two packages claim one path with different bytes, or one has a file where the other has a directory.
        Whatever fetching raises.
    """
    keys = {each.id: each.key for each in plans}
    owners: dict[str, tuple[WheelPlan, bool]] = {}
    suspects: dict[str, WheelPlan] = {}
    for each in plans:
        for placed in layers[each.id].placed:
            is_directory = stat.S_ISDIR(placed.mode)
            other, was_directory = owners.setdefault(placed.path, (each, is_directory))
            if other is each or (is_directory and was_directory):
                continue
            if not {keys[each.id], keys[other.id]} <= agreed:
                suspects[each.id], suspects[other.id] = each, other
    if suspects:
        # What a child hides of its parent is in no one's way.
        check_wheels(suspects.values(), artifacts, only={wheel.digest for wheel in lock.wheels})


def check_shared(
    plans: Sequence[Recipe], layers: Mapping[str, Layer], artifacts: ArtifactSource, *, agreed: AbstractSet[Digest]
) -> None:
    """Check that no path is another thing in two layers of Debian packages: the higher layer would win, by chance.

    Before, the checksums that packages carry were held against each other: links have none, and a package may have
    none at all. ``plans`` are all of the image, in their order: what one of them hides is in no one's way. Directories
    may differ in owner and mode. agreed: as ``check_overlaps``.

    Raises:
        SharedPath: names the path and both packages. Whatever fetching raises.
    """
    owners: dict[str, tuple[DebPlan, Placed]] = {}
    for each in plans:
        if isinstance(each, RemovalPlan):
            owners = _shown(owners, layers[each.id].placed)
        if not isinstance(each, DebPlan):
            continue
        for placed in layers[each.id].placed:
            other, there = owners.setdefault(placed.path, (each, placed))
            if other is each or {each.key, other.key} <= agreed or _agree(placed, there):
                continue
            mine, theirs = _shippers(each, placed.path, artifacts), _shippers(other, placed.path, artifacts)
            sums = {*mine.values(), *theirs.values()}
            if len(sums) > 1 or "" in sums or not (stat.S_ISREG(placed.mode) and stat.S_ISREG(there.mode)):
                names = " and ".join(sorted({*mine, *theirs}))
                raise SharedPath(f"/{placed.path}: both of {names} have it, and not the same")


def _agree(one: Placed, two: Placed) -> bool:
    if stat.S_ISDIR(one.mode) or stat.S_ISLNK(one.mode):
        return stat.S_IFMT(one.mode) == stat.S_IFMT(two.mode) and one.link == two.link
    return False


def _shippers(plan: DebPlan, path: str, artifacts: ArtifactSource) -> dict[str, str]:
    """The packages of ``plan`` that ship ``path``, each with the checksum that it carries for it, or ""."""
    found = {}
    for deb in plan.debs:
        file = artifacts.file(deb)
        if any(entry.path == path for entry in deb_entries(file, deb)):
            sums = {merged(name): md5 for name, md5 in control_of(file).md5sums.items()}
            found[deb.name] = sums.get(path, "")
    return found


def _shown(owners: dict[str, tuple[DebPlan, Placed]], hiding: Sequence[Placed]) -> dict[str, tuple[DebPlan, Placed]]:
    """``owners`` without what the whiteouts of ``hiding`` hide."""
    hidden = set()
    for placed in hiding:
        parent, slash, name = placed.path.rpartition("/")
        if name.startswith(WHITEOUT):
            hidden.add(parent + slash + name.removeprefix(WHITEOUT))

    def is_hidden(path: str) -> bool:
        while path and path not in hidden:
            path = path.rpartition("/")[0]
        return bool(path)

    return {path: owner for path, owner in owners.items() if not is_hidden(path)}
