"""A layer of the image that an environment is laid over: a plan without packages. Pure.

Its bytes are others': the plain manifest lists them as they are. What is made of it is its device, the same files in
a tar of ours, which a lazy start reads by chunks (docs/decisions/0013).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from envbuilder.digest import Descriptor, Digest, canonical_json
from envbuilder.errors import SpecErrors
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.merge import Merged
from envbuilder.layer.pyc import LocalInterpreter
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.lock.model import Artifact, BaseImage, BaseLayer, Interpreter, Lock
from envbuilder.lock.partition import base_ids

#: Name of the rules by which a layer of others becomes a device: raise the number when any byte of any would change.
BASE_WRITER = "base/1"


class InTheWay(SpecErrors):
    """A file of the environment's own cannot be at its path over this base."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePlan:
    """One layer of an image of others."""

    id: str
    layer: BaseLayer

    @property
    def key(self) -> Digest:
        writer = [BASE_WRITER, TAR_WRITER, COMPRESSOR]
        theirs = [str(self.layer.digest), self.layer.size, self.layer.media_type, str(self.layer.diff_id)]
        return Digest.of(canonical_json({"writer": writer, "layer": theirs, "by": self.layer.by}))

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """None: it is no package."""
        return ()

    @property
    def blob(self) -> Descriptor:
        """The layer as it is in its image."""
        return Descriptor(media_type=self.layer.media_type, digest=self.layer.digest, size=self.layer.size)


def base_plan(layer: str, lock: Lock) -> BasePlan | None:
    """The plan of ``layer``, if it is of the base of ``lock``."""
    base = lock.system.base if lock.system else None
    ids = base_ids(lock.name, lock.system)
    return BasePlan(id=layer, layer=base.layers[ids.index(layer)]) if base and layer in ids else None


def base_interpreter(base: BaseImage, python: Interpreter) -> LocalInterpreter:
    """The interpreter of ``base``, as it runs in the tree of that: what its files are decides what it compiles to."""
    libraries = dict(base.env).get("LD_LIBRARY_PATH", "")
    decides = [base.python, libraries, [str(layer.diff_id) for layer in base.layers]]
    return LocalInterpreter(
        argv=(base.python,),
        home="",
        version=python.version,
        identity=str(Digest.of(canonical_json(decides))),
        libraries=libraries,
    )


def check_ways(paths: Iterable[str], below: Merged, name: str) -> None:
    """Check that files at ``paths`` of environment ``name`` lie below directories of the tree ``below``.

    A layer that has ``lib/x`` where a base has ``lib`` as a link would put a directory in the place of the link, and
    hide a system behind it. A file of a base may be replaced by a file, not by a directory or the other way round.

    Raises:
        InTheWay: names every path and what the base has there.
    """
    problems = set()
    for path in paths:
        node, at = below.root, ""
        for part in path.split("/"):
            found = node.children.get(part)
            if found is None:
                break
            node, at = found, f"{at}/{part}"
            if at != f"/{path}" and stat.S_ISLNK(node.placed.mode):
                problems.add(f"/{path}: the base has {at} as a link to {node.placed.link}: write the path without it")
                break
            if at != f"/{path}" and not node.is_directory:
                problems.add(f"/{path}: the base has a file at {at}")
                break
        else:
            if node.is_directory:
                problems.add(f"/{path}: there is a directory")
    if problems:
        raise InTheWay(name, sorted(problems))
