"""The computed layer of an environment as a plan: it depends on all that lies below it.

A child's has what differs from its parent's. A child that hides packages of its parent computes everything anew, and
hides what the parent computed and it does not: links to what is gone, alternatives, a cache of the loader.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.layer.base import check_ways
from envbuilder.layer.computed import COMPUTED_VERSION, computed_entries
from envbuilder.layer.files import file_entries, overlay
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.merge import merge
from envbuilder.layer.model import Recipe
from envbuilder.layer.prefix import PREFIX, Prefix, prefix_claims, prefix_entries
from envbuilder.layer.removal import whiteouts
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.tree import WHITEOUT, Entry, Placed, whiteout
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.partition import REMOVED
from envbuilder.lock.source import ArtifactSource

#: Id of the computed layer of environment ``x`` is ``x/top``.
TOP = "/top"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPlan:
    """The computed layer of one environment: it depends on all that lies below it.

    below: keys of the layers under it, lowest first.
    replaced: numbers of the computed layers under it that were made for packages of which some are now hidden:
        this one has all of what they should have, and hides the rest. given: paths of theirs that the parents' own
        files are at.
    parent: of the computed layer under it, which this one adds to; None if there is none or it is replaced.
    """

    id: str
    lock: Lock
    below: tuple[Digest, ...]
    replaced: tuple[int, ...] = ()
    given: frozenset[str] = frozenset()
    parent: Lock | None = None

    @property
    def theirs_count(self) -> int:
        """Number of layers of a base of others; they are the first."""
        return len(self.lock.system.base.layers) if self.lock.system and self.lock.system.base else 0

    @property
    def theirs(self) -> str:
        """Path of the interpreter of a base of others, or ""."""
        return self.lock.system.base.python if self.lock.system and self.lock.system.base else ""

    @property
    def key(self) -> Digest:
        files = [[rule.path, rule.mode, str(rule.digest)] for rule in self.lock.files]
        return Digest.of(
            canonical_json(
                {
                    "writer": [f"computed/{COMPUTED_VERSION}", PREFIX, TAR_WRITER, COMPRESSOR],
                    "artifacts": [str(deb.digest) for deb in self.lock.debs],
                    "python": self.lock.python.version,
                    "below": [str(key) for key in self.below],
                    "files": files,
                    # Absent when empty, so that the layers of other environments keep their keys.
                    **({"allow-scripts": [*self.lock.allow_scripts]} if self.lock.allow_scripts else {}),
                    **({"replaced": [*self.replaced]} if self.replaced else {}),
                    **({"base": self.theirs} if self.theirs else {}),
                }
            )
        )

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.lock.debs

    def on(
        self, placed: Sequence[Sequence[Placed]], folder: Path, told: Mapping[str, bytes] | None = None
    ) -> GroundedTop:
        """The plan with what it needs of the world: the paths below it, the environment's folder, and what others say
        of packages (layer/debian/part.py).
        """
        return GroundedTop(plan=self, placed=tuple(tuple(layer) for layer in placed), folder=folder, told=told or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundedTop:
    """A TopPlan that can give its entries."""

    plan: TopPlan
    placed: tuple[tuple[Placed, ...], ...]
    folder: Path
    told: Mapping[str, bytes] = field(default_factory=dict, hash=False)

    @property
    def id(self) -> str:
        return self.plan.id

    @property
    def key(self) -> Digest:
        return self.plan.key

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.plan.artifacts

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:
        lock = self.plan.lock
        site_packages = Prefix(root=PREFIX, python=lock.python).site_packages
        parent = self.plan.parent
        skeleton: Iterable[Entry] = ()
        if not parent or parent.python != lock.python:
            skeleton = prefix_entries(PREFIX, lock.python, theirs=self.plan.theirs)
        computed: Iterable[Entry] = ()
        # What a base of others has of dpkg, the loader and accounts is its makers'.
        if not self.plan.theirs:
            computed = computed_entries(
                lock,
                self._packages(),
                artifacts,
                site_packages=site_packages,
                allow=frozenset(lock.allow_scripts),
                memory=cache / "debs",
                told=self.told,
                parent=parent,
            )
        entries = list(overlay(overlay(skeleton, computed), file_entries(lock.files, self.folder)))
        if self.plan.theirs:
            check_ways([f"{PREFIX}/pyvenv.cfg", *(rule.path for rule in lock.files)], merge(self.placed), lock.name)
        entries += [whiteout(path) for path in self._outdated(entries)]
        yield from entries
        yield from self._parents(entries)

    def _packages(self) -> Sequence[Sequence[Placed]]:
        """What lies below, without what replaced layers computed."""
        layers: list[Sequence[Placed]] = [*self.placed]
        for number in self.plan.replaced:
            layers[number] = [placed for placed in layers[number] if placed.path in self.plan.given]
        return layers

    def _outdated(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        """What replaced layers computed and ``entries`` do not have: links to what is hidden, and the like."""
        if not self.plan.replaced:
            return ()
        was = {
            placed.path
            for number in self.plan.replaced
            for placed in self.placed[number]
            if not stat.S_ISDIR(placed.mode) and WHITEOUT not in placed.path
        }
        own = {entry.path for entry in entries}
        ends = {entry.path for entry in entries if not entry.is_directory}  # what was below these is hidden by them
        stays = {placed.path for layer in self._packages() for placed in layer} | own
        gone = {path for path in was - self.plan.given if not ends.intersection(_ancestors(path))}
        return whiteouts(gone, stays)

    def _settled(self) -> Sequence[Sequence[Placed]]:
        """The layers below by who says what a directory is, last: packages name directories that are a base's."""
        if not self.plan.theirs:
            return self.placed
        return (*self.placed[self.plan.theirs_count :], *self.placed[: self.plan.theirs_count])

    def _parents(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Parent directories as they are below: a layer that made /root anew would open it to all."""
        below = {placed.path: placed for layer in self._settled() for placed in layer}
        own = {entry.path for entry in entries}
        for path in sorted({parent for each in own for parent in _ancestors(each)} - own):
            placed = below.get(path)
            if placed is not None and stat.S_ISDIR(placed.mode):
                yield Entry(path=path, mode=placed.mode, uid=placed.uid, gid=placed.gid, xattrs=placed.xattrs)


def top_plan(layer: str, lock: Lock, plans: Sequence[Recipe]) -> TopPlan:
    """The computed layer of ``lock`` over ``plans``."""
    below = tuple(each.key for each in plans)
    tops = [(number, each) for number, each in enumerate(plans) if isinstance(each, TopPlan)]
    if f"{lock.name}{REMOVED}" not in lock.layers:
        return TopPlan(id=layer, lock=lock, below=below, parent=tops[-1][1].lock if tops else None)
    given = {rule.path for _, each in tops for rule in each.lock.files}
    return TopPlan(
        id=layer,
        lock=lock,
        below=below,
        replaced=tuple(number for number, _ in tops),
        given=frozenset({*given, *prefix_claims(PREFIX, lock.python)}),
    )


def _ancestors(path: str) -> Iterator[str]:
    parent = path.rpartition("/")[0]
    while parent:
        yield parent
        parent = parent.rpartition("/")[0]
