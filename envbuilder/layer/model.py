"""LayerPlan, a recipe without bytes, and Layer, what it became."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from envbuilder.digest import Descriptor, Digest
from envbuilder.layer.tree import Entry, Placed
from envbuilder.lock.model import Artifact
from envbuilder.lock.source import ArtifactSource


class Recipe(Protocol):
    """What decides a layer's bytes. ``id`` is the layer's name in the lock."""

    @property
    def id(self) -> str: ...

    @property
    def key(self) -> Digest:
        """sha256 over artefact digests, options, writer and compressor with versions: same key, same bytes."""


class LayerPlan(Recipe, Protocol):
    """A recipe that can give its tree: cheap, hashable, no bytes yet."""

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What ``entries`` reads, the interpreter that compiles included."""

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:
        """The tree of this layer, in any order; parent directories may be left out.

        ``cache`` is a folder of this machine for what is derived from artefacts (the unpacked interpreter).
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A layer of an image of others as it is there: what the plain manifest lists. by: what its history says."""

    blob: Descriptor
    diff_id: Digest
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A built layer: its bytes are in a Target.

    blob: ``tar+zstd`` with the annotations of its chunk index (oci/media_types.py).
    tar_size: bytes of the uncompressed tar, padding included; a multiple of 4096.
    placed: every path of the tar in tar order, for metadata that is made later.
    theirs: of a layer of others: ``blob`` is then its device, the same files in a tar of ours.
    """

    id: str
    blob: Descriptor
    diff_id: Digest
    plan_key: Digest
    tar_size: int
    placed: tuple[Placed, ...]
    theirs: Theirs | None = None

    @property
    def listed(self) -> Theirs:
        """The layer as the plain manifest has it."""
        return self.theirs or Theirs(blob=self.blob, diff_id=self.diff_id, by=f"envbuilder: layer {self.id}")
