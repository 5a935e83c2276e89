"""The layer of a child that hides what it does not keep of its parent's packages: whiteouts, as few as possible.

A parent's layers stay byte for byte what they are. Source: OCI image-spec 1.1 layer.md, "Whiteouts".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.prefix import PREFIX, Prefix, prefix_claims
from envbuilder.layer.pyc import compiled_path, debian_modules, is_compilable
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.tree import Entry, whiteout
from envbuilder.layer.wheel import WHEEL_WRITER, wheel_claims
from envbuilder.lock.model import Artifact, Interpreter, Lock, LockedFile, Wheel
from envbuilder.lock.source import ArtifactSource

#: Raised when other whiteouts are written.
_WRITER = "removal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPlan:
    """A layer of whiteouts for ``removed``; what ``kept`` packages and ``files`` have at the same paths stays.

    What the parent computed is no package's: the child's computed layer hides what it does not make again.
    uncompiled: digests of those whose modules were not compiled, as the lock of their layer says, sorted.
    """

    id: str
    removed: tuple[Artifact, ...]
    kept: tuple[Artifact, ...]
    files: tuple[LockedFile, ...]
    python: Interpreter
    uncompiled: tuple[Digest, ...] = ()

    @property
    def key(self) -> Digest:
        wheels = [each for each in self.artifacts if isinstance(each, Wheel)]
        without = {str(wheel.digest): [*wheel.without] for wheel in wheels if wheel.without}
        return Digest.of(
            canonical_json(
                {
                    "writer": [_WRITER, WHEEL_WRITER, PREFIX, TAR_WRITER, COMPRESSOR],
                    "removed": [str(artifact.digest) for artifact in self.removed],
                    "kept": [str(artifact.digest) for artifact in self.kept],
                    "files": [rule.path for rule in self.files],
                    "python": self.python.tag,
                    # Absent when empty, so that the layers of other environments keep their keys.
                    **({"uncompiled": [*map(str, self.uncompiled)]} if self.uncompiled else {}),
                    **({"without": without} if without else {}),
                }
            )
        )

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return (*self.removed, *self.kept)

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:  # noqa: ARG002  LayerPlan's signature
        stays = {*prefix_claims(PREFIX, self.python), *(rule.path for rule in self.files)}
        stays.update(*(self._paths(artifact, artifacts) for artifact in self.kept))
        goes = set[str]().union(*(self._paths(artifact, artifacts) for artifact in self.removed))
        for path in whiteouts(goes, stays):
            yield whiteout(path)

    def _paths(self, artifact: Artifact, artifacts: ArtifactSource) -> Iterable[str]:
        """Every path that ``artifact`` has in its layer, compiled modules included; directories of Debian packages."""
        compiled = artifact.digest not in self.uncompiled
        if isinstance(artifact, Wheel):
            return wheel_claims(artifacts.file(artifact), artifact, python=self.python, compiled=compiled)
        entries = list(deb_entries(artifacts.file(artifact), artifact))
        if not compiled:
            return [entry.path for entry in entries]
        tag = Prefix(root=PREFIX, python=self.python).cache_tag
        modules = [each.path for each in debian_modules(entries) if is_compilable(each.path, tag)]
        return [*(entry.path for entry in entries), *(compiled_path(path, tag) for path in modules)]


def removal_plan(layer: str, lock: Lock, parents: Sequence[Lock]) -> RemovalPlan:
    """What ``lock`` hides of the last of ``parents``, the chain that it extends, the root first."""
    parent = parents[-1]
    here: tuple[Artifact, ...] = (*lock.wheels, *lock.debs)
    now = {artifact.digest for artifact in here}
    there: tuple[Artifact, ...] = (*parent.wheels, *parent.debs)
    removed: tuple[Artifact, ...] = tuple(artifact for artifact in there if artifact.digest not in now)
    # Wheels and Debian packages share no directory: /opt/env is the wheels' alone.
    kinds = {type(artifact) for artifact in removed}
    kept = tuple(artifact for artifact in there if artifact.digest in now and type(artifact) in kinds)
    compiles = {each.name: each.bytecode for each in parents}
    return RemovalPlan(
        id=layer,
        removed=removed,
        kept=kept,
        files=tuple(rule for each in parents for rule in each.files),
        python=parent.python,
        uncompiled=tuple(
            sorted(each.digest for each in (*removed, *kept) if not compiles[each.layer.partition("/")[0]])
        ),
    )


def whiteouts(goes: Iterable[str], stays: Iterable[str]) -> tuple[str, ...]:
    """The paths to hide so that ``goes`` is hidden and ``stays`` is not: whole directories where nothing stays."""
    kept = {*stays}
    directories = {parent for path in kept for parent in _parents(path)}
    found = set()
    for path in {*goes} - kept - directories:
        above = [parent for parent in _parents(path) if parent not in directories]
        found.add(above[0] if above else path)
    return tuple(sorted(found))


def _parents(path: str) -> list[str]:
    """Directories above ``path``, the highest first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
