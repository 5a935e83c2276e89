"""The layer of a child that hides what it does not keep of its parent's wheels: whiteouts, as few as possible.

A parent's layers stay byte for byte what they are. Source: OCI image-spec 1.1 layer.md, "Whiteouts".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.prefix import PREFIX, prefix_claims
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.tree import Entry, whiteout
from envbuilder.layer.wheel import WHEEL_WRITER, wheel_claims
from envbuilder.lock.model import Artifact, Interpreter, Lock, LockedFile, Wheel
from envbuilder.lock.source import ArtifactSource

#: Raised when other whiteouts are written.
_WRITER = "removal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """A layer of whiteouts for ``removed``; what ``kept`` wheels and ``files`` have at the same paths stays."""

    id: str
    removed: tuple[Wheel, ...]
    kept: tuple[Wheel, ...]
    files: tuple[LockedFile, ...]
    python: Interpreter

    @property
    def key(self) -> Digest:
        return Digest.of(
            canonical_json(
                {
                    "writer": [_WRITER, WHEEL_WRITER, PREFIX, TAR_WRITER, COMPRESSOR],
                    "removed": [str(wheel.digest) for wheel in self.removed],
                    "kept": [str(wheel.digest) for wheel in self.kept],
                    "files": [rule.path for rule in self.files],
                    "python": self.python.tag,
                }
            )
        )

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return (*self.removed, *self.kept)

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:  # noqa: ARG002  LayerPlan's signature
        stays = {*prefix_claims(PREFIX, self.python), *(rule.path for rule in self.files)}
        stays.update(*(wheel_claims(artifacts.file(wheel), wheel, python=self.python) for wheel in self.kept))
        goes = set[str]().union(
            *(wheel_claims(artifacts.file(wheel), wheel, python=self.python) for wheel in self.removed)
        )
        for path in whiteouts(goes, stays):
            yield whiteout(path)


def removal_plan(layer: str, lock: Lock, parent: Lock) -> RemovalPlan:
    """What ``lock`` hides of its ``parent``."""
    now = {wheel.digest for wheel in lock.wheels}
    return RemovalPlan(
        id=layer,
        removed=tuple(wheel for wheel in parent.wheels if wheel.digest not in now),
        kept=tuple(wheel for wheel in parent.wheels if wheel.digest in now),
        files=parent.files,
        python=parent.python,
    )


def whiteouts(goes: Iterable[str], stays: Iterable[str]) -> tuple[str, ...]:
    """The paths to hide so that ``goes`` is hidden and ``stays`` is not: whole directories where nothing stays."""
    kept = {*stays}
    directories = {parent for path in kept for parent in _parents(path)}
    found = set()
    for path in {*goes} - kept:
        above = [parent for parent in _parents(path) if parent not in directories]
        found.add(above[0] if above else path)
    return tuple(sorted(found))


def _parents(path: str) -> list[str]:
    """Directories above ``path``, the highest first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
