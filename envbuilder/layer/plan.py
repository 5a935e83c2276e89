"""A lock becomes layer plans: recipes without bytes, each with the key that decides its bytes. Pure.

A child environment's plans begin with its parent's, the parent's computed layer included:
the parent's layers are then a byte-identical prefix of the child's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from envbuilder.digest import Digest, canonical_json
from envbuilder.errors import EnvbuilderError, HostError, SpecError
from envbuilder.layer.base import BasePlan, base_interpreter, base_plan
from envbuilder.layer.claims import Claim, check_conflicts, twins
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.debian.spool import Spool
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.interpreter import (
    InterpreterPackages,
    StandIn,
    interpreter_packages,
    stand_in,
    unpack_interpreter,
)
from envbuilder.layer.limits import check_plans
from envbuilder.layer.prefix import PREFIX, prefix_claims
from envbuilder.layer.pyc import ImageCompiler, LocalInterpreter, compile_entries, compiler_identity, debian_modules
from envbuilder.layer.removal import RemovalPlan, removal_plan
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.top import TOP, TopPlan, top_plan
from envbuilder.layer.tree import Entry
from envbuilder.layer.wheel import WHEEL_WRITER, install, wheel_claims
from envbuilder.lock.model import Artifact, Deb, Interpreter, Lock, Wheel
from envbuilder.lock.partition import REMOVED
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner

#: Name of the deb rules in a layer's recipe: raise the number when any entry of any deb would change.
DEB_WRITER = "deb/1"


class ForeignBase(SpecError):
    """An environment stands on a system that envbuilder does not make, and of which no image is named."""


class NotConfined(HostError):
    """The interpreter of a base of others would have to run outside of a container."""

    hint = "Build on a machine that can run it, or declare bytecode = false: then no image has compiled modules."


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What makes .pyc files: the image's own interpreter, from its packages or in a base of others.

    packages, theirs: both None where the lock says that nothing is compiled; the bytes are then the same on every
        host too. stand_in: what runs instead of ``packages`` where those cannot; it decides no byte, so it is not in
        the recipe. runner: starts ``theirs``, apart from all else; None until a layer must be made.
    """

    python: Interpreter
    platform: Platform
    packages: InterpreterPackages | None
    stand_in: StandIn | None = None
    theirs: LocalInterpreter | None = None
    runner: Runner | None = field(default=None, compare=False)

    @property
    def compiles(self) -> bool:
        """Whether there are .pyc files."""
        return self.packages is not None or self.theirs is not None

    @property
    def artifacts(self) -> tuple[Deb, ...]:
        running = self.stand_in.packages if self.stand_in else self.packages
        if running is None:
            return ()
        return (*running.deciding, *running.running)

    @property
    def recipe(self) -> str:
        decides = self.packages or self.theirs
        return compiler_identity(decides.identity) if decides else "none"

    def compiler(self, artifacts: ArtifactSource, cache: Path) -> ImageCompiler | None:
        """A compiler that runs on this host; None where nothing is compiled.

        Raises:
            NotConfined: nothing was given to start the interpreter of a base of others.
        """
        if self.theirs is not None:
            if self.runner is None:
                raise NotConfined(f"{self.theirs.argv[0]}: the base's interpreter compiles in a container only")
            return ImageCompiler(interpreter=self.theirs, runner=self.runner)
        if self.packages is None:
            return None
        runs = self.stand_in or StandIn(packages=self.packages, platform=self.platform)
        unpacked = unpack_interpreter(
            runs.packages, artifacts, self.python, runs.platform, cache=cache / "interpreters"
        )
        return ImageCompiler(interpreter=unpacked)


@dataclass(frozen=True, slots=True, kw_only=True)
class DebPlan:
    """A layer of Debian packages, their modules compiled."""

    id: str
    debs: tuple[Deb, ...]
    compilation: Compilation

    @property
    def key(self) -> Digest:
        return _key(DEB_WRITER, self.debs, self.compilation)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return _each_once(self.debs, self.compilation.artifacts)

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:
        compiler = self.compilation.compiler(artifacts, cache)
        spool = Spool(cache)
        for deb in self.debs:
            entries = list(deb_entries(artifacts.file(deb), deb, spool=spool))
            yield from entries
            if compiler is not None:
                yield from compile_entries(debian_modules(entries), compiler)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlan:
    """A layer of Python packages, installed below the prefix and compiled."""

    id: str
    wheels: tuple[Wheel, ...]
    compilation: Compilation

    @property
    def key(self) -> Digest:
        return _key(WHEEL_WRITER, self.wheels, self.compilation)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return _each_once(self.wheels, self.compilation.artifacts)

    def entries(self, artifacts: ArtifactSource, *, cache: Path) -> Iterator[Entry]:
        """As LayerPlan.entries.

        Raises:
            Conflict: two wheels claim one path with different bytes.
        """
        python = self.compilation.python
        installed = [(wheel.name, install(artifacts.file(wheel), wheel, python=python)) for wheel in self.wheels]
        compiler = self.compilation.compiler(artifacts, cache)
        claims = ((name, each.claims(compiled=compiler is not None)) for name, each in installed)
        check_conflicts([("the prefix", prefix_claims(PREFIX, python)), *claims])
        seen: set[str] = set()
        for _, each in installed:
            for entry in each.entries(compiler):
                # What two wheels both have is the same, or check_conflicts would have said so.
                if entry.path not in seen:
                    seen.add(entry.path)
                    yield entry


AnyPlan: TypeAlias = BasePlan | DebPlan | WheelPlan | RemovalPlan | TopPlan


def plan(locks: Sequence[Lock]) -> tuple[AnyPlan, ...]:
    """The layers of the last of ``locks``, base first; the others are what it extends, the root first.

    Raises:
        ForeignBase: its base is not made here, and no image is named. TooDeep, LayerTooLarge: layer/limits.py.
    """
    # A lock is sorted already; that a plan does not depend on it must not rest on that.
    by_name = {each.name: _ordered(each) for each in locks}
    lock = by_name[locks[-1].name]
    if lock.system and not lock.system.base:
        raise ForeignBase(
            f"{lock.name}: its base is {lock.system.name} with Python {lock.system.interpreter}, which envbuilder does "
            "not make",
            hint="Name an image of it in base.image and lock again; or install the wheels there by hash: "
            f"envbuilder export {lock.name} --format requirements.",
        )
    # A child may have another interpreter than its parent.
    compilations = {each.name: _compilation(each) for each in by_name.values()}
    plans: list[AnyPlan] = []
    for layer in lock.layers:
        # A parent's layer is as the parent's lock says: a child may have hidden a package of it.
        owner = by_name[layer.partition("/")[0]]
        compilation = compilations[owner.name]
        if base := base_plan(layer, owner):
            plans.append(base)
            continue
        if layer.endswith(TOP):
            plans.append(top_plan(layer, owner, plans))
            continue
        if layer.endswith(REMOVED):
            names = [each.name for each in locks]
            plans.append(removal_plan(layer, owner, [by_name[name] for name in names[: names.index(owner.name)]]))
            continue
        debs = tuple(deb for deb in owner.debs if deb.layer == layer)
        wheels = tuple(wheel for wheel in owner.wheels if wheel.layer == layer)
        if debs:
            plans.append(DebPlan(id=layer, debs=debs, compilation=compilation))
        else:
            plans.append(WheelPlan(id=layer, wheels=wheels, compilation=compilation))
    check_plans(lock.name, plans)
    return tuple(plans)


def _compilation(lock: Lock) -> Compilation:
    base = lock.system.base if lock.system else None
    theirs = base_interpreter(base, lock.python) if base and lock.bytecode else None
    packages = interpreter_packages(lock.debs, lock.python) if lock.bytecode and not base else None
    return Compilation(python=lock.python, platform=lock.platform, packages=packages, theirs=theirs)


def compiled_by_base(plans: Sequence[AnyPlan], runner: Runner) -> tuple[AnyPlan, ...]:
    """``plans``, with what starts the interpreter of the base that they lie over."""
    return tuple(
        replace(each, compilation=replace(each.compilation, runner=runner))
        if isinstance(each, DebPlan | WheelPlan) and each.compilation.theirs
        else each
        for each in plans
    )


def compiled_here(plans: Sequence[AnyPlan], debs: Sequence[Deb], host: Platform) -> tuple[AnyPlan, ...]:
    """``plans`` for a machine of another architecture than ``host``, with what compiles for them on it.

    debs: of a lock of the environment for ``host``. Plans stay as they are where that has another interpreter:
    building them then asks for one that runs here, and says so.
    """
    found: list[AnyPlan] = []
    for each in plans:
        if isinstance(each, DebPlan | WheelPlan) and each.compilation.platform.machine != host.machine:
            ours = each.compilation
            runs = stand_in(ours.packages, debs, ours.python, host) if ours.packages else None
            found.append(replace(each, compilation=replace(ours, stand_in=runs)))
        else:
            found.append(each)
    return tuple(found)


def _ordered(lock: Lock) -> Lock:
    return replace(
        lock,
        wheels=tuple(sorted(lock.wheels, key=lambda wheel: wheel.name)),
        debs=tuple(sorted(lock.debs, key=lambda deb: deb.name)),
    )


def check_wheels(
    plans: Iterable[WheelPlan],
    artifacts: ArtifactSource,
    *,
    only: AbstractSet[Digest] | None = None,
    doubtful: AbstractSet[Digest] = frozenset(),
) -> tuple[str, ...]:
    """Check that the wheels of ``plans`` can lie in one prefix, from their directories alone.

    only: digests of the wheels that are looked at, if not all are. doubtful: of those that are left out if they
        cannot be read.

    Returns:
        a line for each two of their files whose paths differ only in case or Unicode form.

    Raises:
        Conflict: names every path and both packages.
    """
    claims: list[tuple[str, Mapping[str, Claim]]] = []
    for each in plans:
        python, compiled = each.compilation.python, each.compilation.compiles
        if not claims:
            claims.append(("the prefix", prefix_claims(PREFIX, python)))
        for wheel in each.wheels:
            if only is not None and wheel.digest not in only:
                continue
            try:
                claims.append(
                    (wheel.name, wheel_claims(artifacts.file(wheel), wheel, python=python, compiled=compiled))
                )
            except EnvbuilderError:
                if wheel.digest not in doubtful:
                    raise
    check_conflicts(claims)
    return twins(claims)


def _key(writer: str, artifacts: Sequence[Artifact], compilation: Compilation) -> Digest:
    wheels = [each for each in artifacts if isinstance(each, Wheel)]
    unrecorded = [wheel.name for wheel in wheels if not wheel.recorded]
    without = {wheel.name: [*wheel.without] for wheel in wheels if wheel.without}
    return Digest.of(
        canonical_json(
            {
                "writer": [writer, PREFIX, TAR_WRITER, COMPRESSOR],
                "artifacts": [str(artifact.digest) for artifact in artifacts],
                "python": compilation.python.tag,
                "compiler": compilation.recipe,
                # Absent when empty, so that the layers of other environments keep their keys.
                **({"unrecorded": unrecorded} if unrecorded else {}),
                **({"without": without} if without else {}),
            }
        )
    )


def _each_once(*groups: Sequence[Artifact]) -> tuple[Artifact, ...]:
    return tuple({artifact.digest: artifact for group in groups for artifact in group}.values())
