"""Make a lock: ask apt and uv, check the CUDA axis, give every artefact to a layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.digest import Digest
from envbuilder.errors import HostError, SpecError
from envbuilder.lock.archives import find_archives, snapshot_archives
from envbuilder.lock.builds import Builds
from envbuilder.lock.changes import changed
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import digest
from envbuilder.lock.cuda import cuda_axis, cuda_constraints
from envbuilder.lock.debian import Installed, resolve_debs, upstream_version
from envbuilder.lock.download import Http, fetch_size, headers_for, http_pool
from envbuilder.lock.model import Artifact, Deb, ForeignSystem, Interpreter, Lock, LockedFile, Parent, Wheel
from envbuilder.lock.partition import assign
from envbuilder.lock.python import resolve_wheels
from envbuilder.lock.settings import Indexes, address_of, folder_of, is_folder
from envbuilder.lock.uv import PythonTarget, Uv
from envbuilder.lock.wanted import Wanted, substitutions, wanted
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner
from envbuilder.spec.model import Base, EnvSpec


class NoInterpreter(SpecError):
    """The Debian packages do not bring the declared Python, or no C library."""


class UnknownIndex(HostError):
    """The declaration names an index role that this machine's settings do not have."""


class UnknownUpgrade(SpecError):
    """A package to upgrade is not in the lock."""


class UnknownWheel(SpecError):
    """The declaration says something of the files of a Python package that the image does not have."""


class PlatformNotDeclared(SpecError):
    """The environment does not declare the platform that is asked for."""


class OtherBase(SpecError):
    """The image that an environment is laid over is not what the declaration says of it."""


def _no_base(image: str, python: str, platform: Platform) -> tuple[ForeignSystem, str]:
    raise SpecError(f"base {image}: nothing here reads images for Python {python} on {platform}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine's configuration, as far as locking needs it (decision 10).

    environment: variables for uv and apt.
    bytes_of: fetches the file at an address with these headers: its digest and size, None when it cannot be had.
    distrust: whether files of other indexes than the default one are fetched and hashed when they are new.
    indexes: Python indexes by role, from ``read_python_indexes``.
    mirrors: Debian archive roots by role; what is missing is looked for on the host.
    status_of: a Debian package's paragraph in dpkg's status file; it may fetch the package.
    base_of: what the image that a declaration names is, and its glibc: ``(image, python, platform)``; it fetches it.
    """

    runner: Runner
    environment: Mapping[str, str]
    indexes: Indexes
    mirrors: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")
    bytes_of: Callable[[str, Mapping[str, str]], tuple[Digest, int] | None] = lambda _url, _headers: None
    distrust: bool = False
    status_of: Callable[[Deb], str] = lambda _deb: ""
    base_of: Callable[[str, str, Platform], tuple[ForeignSystem, str]] = _no_base


def make_lock(
    spec: EnvSpec,
    platform: Platform,
    *,
    machine: Machine,
    existing: Lock | None = None,
    parent: Lock | None = None,
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
    debs = _debs(spec, platform, machine, before, parent, theirs)
    system, glibc = _system(spec, platform, machine, before, parent)
    python, target = _target(spec, platform, debs, parent, system, glibc)
    uv = _uv(spec, machine)
    want = _wanted(spec, target, parent, machine)
    wheels = resolve_wheels(want, target, preferred=_preferred(before, parent, ours), uv=uv)
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
        base=_packages(spec, parent),
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
        substitutions=substitutions(spec, want, wheels),
        # Nothing that is locked has the interpreter of an image of others (docs/decisions/0013).
        bytecode=spec.bytecode and (parent is None or parent.bytecode) and not (system and system.base),
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
    inherited = [wheel.name for wheel in parent.wheels if wheel.name not in want.excluded] if parent else []
    return replace(
        want,
        requires=tuple(dict.fromkeys((*want.requires, *inherited))),
        constraints=(*want.constraints, *cuda_constraints(spec.cuda)),
    )


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


def _packages(spec: EnvSpec, parent: Lock | None) -> tuple[str, ...]:
    """Debian packages asked for by name, the parent's included."""
    if spec.base and spec.base.system:
        return ()
    named = spec.base.packages if spec.base else ()
    return tuple(sorted({*named, *(parent.base if parent else [f"python{spec.python}"])}))


def _debs(
    spec: EnvSpec,
    platform: Platform,
    machine: Machine,
    existing: Lock | None,
    parent: Lock | None,
    anew: Collection[str],
) -> tuple[Deb, ...]:
    packages = _packages(spec, parent)
    suite = parent.suite if parent else spec.base.suite if spec.base else ""
    inherited = parent.debs if parent else ()
    if not suite:
        return ()
    before = existing.parent.changed if existing and existing.parent else ()
    versions = {deb.name: deb.version for deb in inherited}
    changed_before = {each.name: each.after for each in before if each.deb and versions.get(each.name) == each.before}
    moment = _moment(parent.debs) if parent else spec.base.snapshot if spec.base else ""
    asked = (suite, packages, platform, moment)
    if existing and not anew and (existing.suite, existing.base, existing.platform, _moment(existing.debs)) == asked:
        there = {deb.digest for deb in existing.debs}
        if all(deb.digest in there or deb.name in changed_before for deb in inherited):
            return existing.debs
    anew = {*anew, *(name for name, is_there in changed_before.items() if is_there)}
    if parent and packages == parent.base and not anew:
        return inherited
    return resolve_debs(
        Base(suite=suite, packages=packages, snapshot=moment),
        platform,
        archives=snapshot_archives(machine.mirrors, moment)
        if moment
        else find_archives(machine.mirrors, root=machine.root),
        runner=machine.runner,
        environment=machine.environment,
        root=machine.root,
        installed=Installed(debs=inherited, paragraph=machine.status_of) if parent else None,
        anew=sorted(anew),
    )


def _moment(debs: Sequence[Deb]) -> str:
    """The moment of the snapshot that ``debs`` were chosen from."""
    return debs[0].archive.partition("@")[2] if debs else ""


def _system(
    spec: EnvSpec, platform: Platform, machine: Machine, existing: Lock | None, parent: Lock | None
) -> tuple[ForeignSystem | None, str]:
    """What stands below that is not made here, and the glibc that wheels may want of it.

    An image that was read stays, wherever its tag points by now, until the declaration says other things of it.

    Raises:
        OtherBase: the image is not what the declaration says. What ``Machine.base_of`` raises.
    """
    asked = spec.base.system if spec.base else None
    if asked is None:
        return (parent.system, parent.glibc) if parent else (None, "")
    if not asked.image:
        return ForeignSystem(name=asked.name, interpreter=asked.interpreter), asked.glibc
    was = existing.system if existing and existing.platform == platform else None
    if (
        was
        and was.base
        and existing
        and asked.image in (was.asked, was.image)
        and existing.python.version == spec.python
    ):
        said = ((asked.name, was.name), (asked.interpreter, was.interpreter), (asked.glibc, existing.glibc))
        if all(want in ("", got) for want, got in said):
            return was, existing.glibc
    found, glibc = machine.base_of(asked.image, spec.python, platform)
    for what, want, got in (
        ("system", asked.name, found.name),
        ("interpreter", asked.interpreter, found.interpreter),
    ):
        if want and want != got:
            raise OtherBase(f"{spec.name}: base.{what}: want {want}, {found.image} has {got}")
    if asked.glibc and Version(asked.glibc) > Version(glibc):
        raise OtherBase(f"{spec.name}: base.glibc: want {asked.glibc} or newer, {found.image} has {glibc}")
    return replace(found, asked=asked.image if asked.image != found.image else ""), asked.glibc or glibc


def _target(
    spec: EnvSpec,
    platform: Platform,
    debs: Sequence[Deb],
    parent: Lock | None,
    system: ForeignSystem | None,
    glibc: str,
) -> tuple[Interpreter, PythonTarget]:
    version = parent.python.version if parent else spec.python
    python = Interpreter(version=version, tag="cp" + version.replace(".", ""))
    if system:
        full_version = system.interpreter
    else:
        versions = {deb.name: upstream_version(deb.version) for deb in debs}
        full_version, glibc = versions.get(f"python{version}", ""), versions.get("libc6", "")
    if not full_version or not glibc:
        missing = f"python{version}" if glibc else "libc6"
        raise NoInterpreter(
            f"{spec.name}: the Debian packages bring no {missing}",
            hint="Name a suite that has this Python, or a base.image that brings it.",
        )
    return python, PythonTarget(python=python, full_version=full_version, platform=platform, glibc=glibc)


def _uv(spec: EnvSpec, machine: Machine) -> Uv:
    roles = {*spec.extra_indexes, *spec.sources.values()}
    if missing := sorted(role for role in roles if role not in machine.indexes.all):
        raise UnknownIndex(
            f"{spec.name}: no index is configured for {', '.join(missing)}",
            hint=f"Set indexes.{missing[0]} in envbuilder.toml, or name an index so in uv.toml.",
        )
    http = Http(pool=http_pool(machine.environment), wait=lambda _: None)

    def headers(url: str) -> Mapping[str, str]:
        # Of the indexes' credentials, only those of the file's own origin are sent.
        return max((headers_for(url, address_of(index)) for index in machine.indexes.all.values()), key=len)

    def size_of(url: str) -> int | None:
        return folder_of(url).stat().st_size if is_folder(url) else fetch_size(http, url, headers(url))

    return Uv(
        runner=machine.runner,
        environment=machine.environment,
        indexes=machine.indexes,
        extra=spec.extra_indexes,
        size_of=size_of,
        bytes_of=lambda url: machine.bytes_of(url, headers(url)),
        distrust=machine.distrust,
    )


def _files(spec: EnvSpec) -> tuple[LockedFile, ...]:
    # The parent's files are in the parent's layers.
    return tuple(
        LockedFile(source=rule.source, path=rule.path, mode=rule.mode, digest=rule.digest) for rule in spec.files
    )
