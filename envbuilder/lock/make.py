"""Make a lock: ask apt and uv, check the CUDA axis, give every artefact to a layer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envbuilder.errors import SpecError
from envbuilder.lock.below import debs_below, debs_by_name, python_target, system_below
from envbuilder.lock.builds import Builds
from envbuilder.lock.changes import changed
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import digest
from envbuilder.lock.cuda import cuda_axis, cuda_constraints
from envbuilder.lock.download import Http, http_pool
from envbuilder.lock.machine import Machine, uv_of
from envbuilder.lock.model import Artifact, Lock, LockedFile, Parent, Wheel
from envbuilder.lock.partition import assign
from envbuilder.lock.python import NoWheel, UnknownPackage, Unsatisfiable, resolve_wheels
from envbuilder.lock.settings import DEFAULT
from envbuilder.lock.uv import PythonTarget
from envbuilder.lock.wanted import Wanted, inheriting, substitutions, wanted
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import EnvSpec


class UnknownUpgrade(SpecError):
    """A package to upgrade is not in the lock."""


class UnknownWheel(SpecError):
    """The declaration says something of the files of a Python package that the image does not have."""


class PlatformNotDeclared(SpecError):
    """The environment does not declare the platform that is asked for."""


def make_lock(
    spec: EnvSpec,
    platform: Platform,
    *,
    machine: Machine,
    existing: Lock | None = None,
    parent: Lock | None = None,
    lineage: Sequence[EnvSpec] = (),
    upgrade: bool = False,
    upgrade_packages: Collection[str] = (),
) -> Lock:
    """The lock of ``spec`` for ``platform``. Same inputs and same state of the indexes: same lock.

    What ``existing`` pins stays where the declaration allows it, unless it is to be upgraded. Debian
    packages change only when the base does, or with ``upgrade``: then they are as the archive is now. Those of a
    parent stay unless a child's own need others.

    Args:
        spec: the declaration.
        platform: one of the declaration's platforms.
        machine: how this machine reaches indexes and archives.
        existing: the lock as it is.
        parent: the parent's lock, which must be there when the environment extends one.
        lineage: the declarations of what it extends, the root first: their sources and replacements hold.
        upgrade: choose everything anew.
        upgrade_packages: Python packages to choose anew; of a child also Debian packages of its parent.

    Raises:
        SpecError: the declaration asks for what is not there; the leaf says what.
        UnavailableError, RefusedError, IntegrityError, HostError: an index, an archive or this host is at fault.
    """
    if platform not in spec.platforms:
        declared = ", ".join(map(str, spec.platforms))
        raise PlatformNotDeclared(f"{spec.name}: want one of {declared}, got {platform}")
    if spec.extends and (parent is None or parent.name != spec.extends):
        raise SpecError(f"{spec.name}: extends {spec.extends!r}, which has no lock", hint=f"Lock {spec.extends} first.")
    if parent and parent.system and spec.base and spec.base.packages:
        raise SpecError(f"{spec.name}: base.packages: {parent.system.name} below {parent.name} is not made here")
    ours, theirs = _check_upgrades(spec, upgrade_packages, existing, parent)
    if existing and not upgrade and not upgrade_packages and not stale_reasons(spec, platform, existing, parent):
        return existing
    before = None if upgrade else existing
    debs = debs_below(spec, platform, machine, before, parent, theirs)
    system, glibc = system_below(spec, platform, machine, before, parent)
    python, target = python_target(spec, platform, debs, parent, system, glibc)
    asked = inheriting(spec, lineage)
    want = _wanted(asked, target, parent, machine)
    uv = uv_of(asked, machine, sources=want.sources.values())
    try:
        wheels = resolve_wheels(want, target, preferred=_preferred(before, parent, ours), uv=uv)
    except (Unsatisfiable, UnknownPackage, NoWheel) as error:
        error.hint = _where_else(error, want, spec, parent) or error.hint
        raise
    wheels = _as_declared(wheels, spec, parent)
    cuda = cuda_axis(spec.cuda, wheels, debs=debs, inherited=parent.cuda if parent else None)
    assignment = assign(spec.name, wheels, debs, existing=existing, parent=parent, system=system)
    return Lock(
        name=spec.name,
        version=spec.version,
        platform=platform,
        spec_digest=spec.digest,
        python=python,
        suite=parent.suite if parent else spec.base.suite if spec.base else "",
        base=debs_by_name(spec, parent),
        glibc=target.glibc,
        layers=assignment.layers,
        wheels=assignment.wheels,
        debs=assignment.debs,
        partition=assignment.partition,
        files=_files(spec),
        env={**(parent.env if parent else {}), **spec.env},
        start=spec.start,
        cuda=cuda,
        parent=_parent(parent, [*wheels, *debs]) if parent else None,
        system=system,
        allow_scripts=_allowed(spec, parent),
        substitutions=substitutions(asked, want, wheels),
        bytecode=spec.bytecode and (parent is None or parent.bytecode),
    )


def spread(lock: Lock, parent: Lock | None) -> Lock:
    """``lock`` with its packages given to layers as they would be without it; versions stay. Pure.

    Raises:
        TooManyLayers: the parent leaves no room.
    """
    done = assign(lock.name, lock.wheels, lock.debs, parent=parent, system=lock.system)
    return replace(lock, layers=done.layers, wheels=done.wheels, debs=done.debs, partition=done.partition)


def _parent(parent: Lock, here: Sequence[Artifact]) -> Parent:
    there: list[Artifact] = [*parent.wheels, *parent.debs]
    return Parent(name=parent.name, lock_digest=digest(parent), changed=changed(there, here))


def _as_declared(wheels: Sequence[Wheel], spec: EnvSpec, parent: Lock | None) -> tuple[Wheel, ...]:
    """``wheels``, each with what the declaration says of its files; those of the parent are as they are there."""
    if unknown := sorted({*spec.allow_records, *spec.leave_out} - {wheel.name for wheel in wheels}):
        raise UnknownWheel(
            f"{spec.name}: allow-records, leave-out: the lock has no Python package {', '.join(unknown)}"
        )
    theirs = {(wheel.name, wheel.digest): wheel for wheel in parent.wheels} if parent else {}
    found = []
    for wheel in wheels:
        asked = replace(
            wheel, recorded=wheel.name not in spec.allow_records, without=spec.leave_out.get(wheel.name, ())
        )
        was = theirs.get((wheel.name, wheel.digest))
        if was and wheel.name in {*spec.allow_records, *spec.leave_out} and asked != replace(was, layer=wheel.layer):
            raise UnknownWheel(
                f"{spec.name}: allow-records, leave-out: {wheel.name} is the parent's",
                hint=f"Say it in {spec.extends}, or ask for another version of it here.",
            )
        found.append(replace(wheel, recorded=was.recorded, without=was.without) if was else asked)
    return tuple(found)


def _allowed(spec: EnvSpec, parent: Lock | None) -> tuple[str, ...]:
    own = spec.base.allow_scripts if spec.base else ()
    return tuple(sorted({*own, *(parent.allow_scripts if parent else ())}))


def _preferred(existing: Lock | None, parent: Lock | None, named: Collection[str]) -> list[Wheel]:
    """Wheels to keep: the parent's, and before them those that the existing lock chose for itself."""
    inherited = [wheel for wheel in parent.wheels if wheel.name not in named] if parent else []
    own = [wheel for wheel in existing.wheels if wheel.name not in named] if existing else []
    if existing and parent:
        own = [wheel for wheel in own if wheel.layer.startswith(f"{existing.name}/")]
    return [*inherited, *own]


def _wanted(spec: EnvSpec, target: PythonTarget, parent: Lock | None, machine: Machine) -> Wanted:
    builds = Builds(http=Http(pool=http_pool(machine.environment), wait=lambda _: None), indexes=machine.indexes.all)
    want = wanted(spec, lambda role, name, version: builds.missing(role, name, version, target))
    if parent:
        want = replace(want, sources={**want.sources, **_as_there(parent, want, spec, machine)})
    inherited = [wheel.name for wheel in parent.wheels if wheel.name not in want.excluded] if parent else []
    return replace(
        want,
        requires=tuple(dict.fromkeys((*want.requires, *inherited))),
        constraints=(*want.constraints, *cuda_constraints(spec.cuda)),
    )


def _as_there(parent: Lock, want: Wanted, spec: EnvSpec, machine: Machine) -> dict[str, str]:
    """The index of each package of ``parent`` that ``want`` binds to none: the one that it has there.

    What the parent has from the default one may come from elsewhere only when the child asks for it by name.
    """
    named = {canonicalize_name(Requirement(each).name) for each in want.requires}
    astray = bool(spec.extra_indexes) and DEFAULT in machine.indexes.all  # an extra index is asked first
    return {
        wheel.name: wheel.index
        for wheel in parent.wheels
        if (wheel.index != DEFAULT or (astray and wheel.name not in named))
        and wheel.name not in want.excluded
        and want.source_of(wheel.name) is None
    }


def _where_else(error: SpecError, want: Wanted, spec: EnvSpec, parent: Lock | None) -> str:
    """What helps when a package is sought only where the parent has it; "" when that is not the reason."""
    for wheel in parent.wheels if parent else ():
        role = want.sources.get(wheel.name)
        if role and wheel.name not in spec.sources and re.search(rf"\b{re.escape(wheel.name)}\b", str(error)):
            return (
                f"{wheel.name} comes from the index {role!r}, as in {spec.extends}; to take it from another one, "
                f"name that under [sources]."
            )
    return ""


def _check_upgrades(
    spec: EnvSpec, named: Collection[str], existing: Lock | None, parent: Lock | None
) -> tuple[set[str], set[str]]:
    """Of ``named``, the Python packages and the parent's Debian packages."""
    debs = {deb.name for deb in parent.debs} if parent else set()
    python: set[str] = {canonicalize_name(name) for name in named}
    if existing:
        python &= {wheel.name for wheel in existing.wheels}
        debs &= {*named}
        if unknown := sorted(name for name in named if canonicalize_name(name) not in python and name not in debs):
            hint = "Debian packages of an environment of its own are upgraded all at once: --upgrade."
            raise UnknownUpgrade(
                f"{spec.name}: not in the lock: {', '.join(unknown)}",
                hint=hint if {*unknown} & {deb.name for deb in existing.debs} else "",
            )
    return python, debs & {*named}


def _files(spec: EnvSpec) -> tuple[LockedFile, ...]:
    # The parent's files are in the parent's layers.
    return tuple(
        LockedFile(source=rule.source, path=rule.path, mode=rule.mode, digest=rule.digest) for rule in spec.files
    )
