"""Make a lock: ask apt and uv, check the CUDA axis, give every artefact to a layer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from envbuilder.errors import SpecError
from envbuilder.lock.archives import find_archives
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import digest
from envbuilder.lock.cuda import cuda_axis
from envbuilder.lock.debian import resolve_debs, upstream_version
from envbuilder.lock.download import Http, fetch_size, headers_for, http_pool
from envbuilder.lock.model import Artifact, Deb, Interpreter, Lock, LockedFile, Parent, Wheel
from envbuilder.lock.partition import assign
from envbuilder.lock.python import PythonTarget, Uv, resolve_wheels
from envbuilder.lock.settings import Indexes
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner
from envbuilder.spec.model import Base, EnvSpec


class NoInterpreter(SpecError):
    """The Debian packages do not bring the declared Python, or no C library."""


class UnknownIndex(SpecError):
    """The declaration names an index role that this machine's settings do not have."""


class UnknownUpgrade(SpecError):
    """A package to upgrade is not in the lock, or is the parent's to upgrade."""


class PlatformNotDeclared(SpecError):
    """The environment does not declare the platform that is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine's configuration, as far as locking needs it (decision 10).

    environment: variables for uv and apt.
    indexes: Python indexes by role, from ``read_python_indexes``.
    mirrors: Debian archive roots by role; what is missing is looked for on the host.
    """

    runner: Runner
    environment: Mapping[str, str]
    indexes: Indexes
    mirrors: Mapping[str, str] = field(default_factory=dict)
    root: Path = Path("/")


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
    packages change only when the base does, or with ``upgrade``: then they are as the archive is now.

    Args:
        spec: the declaration.
        platform: one of the declaration's platforms.
        machine: how this machine reaches indexes and archives.
        existing: the lock as it is.
        parent: the parent's lock, which must be there when the environment extends one.
        upgrade: choose everything anew.
        upgrade_packages: Python packages to choose anew.

    Raises:
        SpecError: the declaration asks for what is not there; the leaf says what.
        UnavailableError, IntegrityError, HostError: an index, an archive or this host is at fault.
    """
    if platform not in spec.platforms:
        declared = ", ".join(map(str, spec.platforms))
        raise PlatformNotDeclared(f"{spec.name}: want one of {declared}, got {platform}")
    if spec.extends and (parent is None or parent.name != spec.extends):
        raise SpecError(f"{spec.name}: extends {spec.extends!r}, which has no lock", hint=f"Lock {spec.extends} first.")
    named = {canonicalize_name(package) for package in upgrade_packages}
    _check_upgrades(spec, named, existing, parent)
    if existing and not upgrade and not named and not stale_reasons(spec, platform, existing, parent):
        return existing
    debs = _debs(spec, platform, machine, None if upgrade else existing, parent)
    python, target = _target(spec, platform, debs, parent)
    wheels = resolve_wheels(
        spec.requires,
        target,
        constraints=spec.constraints,
        preferred=() if upgrade or not existing else [w for w in existing.wheels if w.name not in named],
        fixed=parent.wheels if parent else (),
        uv=_uv(spec, machine),
    )
    cuda = cuda_axis(spec.cuda, wheels, inherited=parent.cuda if parent else None)
    assignment = assign(spec.name, wheels, debs, existing=existing, parent=parent)
    return Lock(
        name=spec.name,
        version=spec.version,
        platform=platform,
        spec_digest=spec.digest,
        python=python,
        suite=parent.suite if parent else spec.base.suite if spec.base else "",
        base=parent.base if parent else _packages(spec),
        glibc=target.glibc,
        layers=assignment.layers,
        wheels=assignment.wheels,
        debs=assignment.debs,
        partition=assignment.partition,
        files=_files(spec),
        env={**(parent.env if parent else {}), **spec.env},
        start=spec.start,
        cuda=cuda,
        parent=Parent(name=parent.name, lock_digest=digest(parent)) if parent else None,
    )


def _check_upgrades(spec: EnvSpec, named: Collection[str], existing: Lock | None, parent: Lock | None) -> None:
    if inherited := sorted({*named} & {wheel.name for wheel in parent.wheels} if parent else ()):
        raise UnknownUpgrade(
            f"{spec.name}: {', '.join(inherited)} comes from the parent {spec.extends!r}",
            hint=f"Run: envbuilder lock {spec.extends} --upgrade-package {inherited[0]}",
        )
    if unknown := sorted({*named} - {wheel.name for wheel in existing.wheels} if existing else ()):
        raise UnknownUpgrade(f"{spec.name}: not in the lock: {', '.join(unknown)}")


def _packages(spec: EnvSpec) -> tuple[str, ...]:
    named = spec.base.packages if spec.base else ()
    return tuple(sorted({*named, f"python{spec.python}"}))


def _debs(
    spec: EnvSpec, platform: Platform, machine: Machine, existing: Lock | None, parent: Lock | None
) -> tuple[Deb, ...]:
    if parent:
        return parent.debs
    assert spec.base is not None
    packages = _packages(spec)
    if existing and (existing.suite, existing.base, existing.platform) == (spec.base.suite, packages, platform):
        return existing.debs
    return resolve_debs(
        Base(suite=spec.base.suite, packages=packages),
        platform,
        archives=find_archives(machine.mirrors, root=machine.root),
        runner=machine.runner,
        environment=machine.environment,
        root=machine.root,
    )


def _target(
    spec: EnvSpec, platform: Platform, debs: Sequence[Deb], parent: Lock | None
) -> tuple[Interpreter, PythonTarget]:
    version = parent.python.version if parent else spec.python
    versions = {deb.name: upstream_version(deb.version) for deb in debs}
    full_version, glibc = versions.get(f"python{version}", ""), versions.get("libc6", "")
    if not full_version or not glibc:
        missing = f"python{version}" if glibc else "libc6"
        raise NoInterpreter(f"{spec.name}: the Debian packages bring no {missing}")
    python = Interpreter(version=version, tag="cp" + version.replace(".", ""))
    return python, PythonTarget(python=python, full_version=full_version, platform=platform, glibc=glibc)


def _uv(spec: EnvSpec, machine: Machine) -> Uv:
    if missing := [role for role in spec.extra_indexes if role not in machine.indexes.all]:
        raise UnknownIndex(
            f"{spec.name}: extra-indexes: no index is configured for {', '.join(missing)}",
            hint=f"Set indexes.{missing[0]} in envbuilder.toml, or name an index so in uv.toml.",
        )
    http = Http(pool=http_pool(machine.environment), wait=lambda _: None)

    def size_of(url: str) -> int | None:
        # Of the indexes' credentials, only those of the file's own origin are sent.
        headers = [headers_for(url, index) for index in machine.indexes.all.values()]
        return fetch_size(http, url, max(headers, key=len))

    return Uv(
        runner=machine.runner,
        environment=machine.environment,
        indexes=machine.indexes,
        extra=spec.extra_indexes,
        size_of=size_of,
    )


def _files(spec: EnvSpec) -> tuple[LockedFile, ...]:
    # The parent's files are in the parent's layers.
    return tuple(
        LockedFile(source=rule.source, path=rule.path, mode=rule.mode, digest=rule.digest) for rule in spec.files
    )


def changes(old: Lock | None, new: Lock) -> tuple[str, ...]:
    """What a reader wants to know of ``new`` against ``old``: a line for each artefact, then the axes."""
    lines = []
    before, after = _by_name(old), _by_name(new)
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was is None and now is not None:
            lines.append(f"+ {key[1]} {now.version}")
        elif now is None and was is not None:
            lines.append(f"- {key[1]} {was.version}")
        elif was and now and was.version != now.version:
            lines.append(f"{key[1]} {was.version} -> {now.version}")
        elif was and now and was.digest != now.digest:
            lines.append(f"{key[1]} {now.version}: other file")
    if old is not None:
        for what in ("version", "suite", "glibc", "layers", "files", "env", "start", "cuda"):
            if getattr(old, what) != getattr(new, what):
                lines.append(f"{what} changed")
        if not lines and replace(old, spec_digest=new.spec_digest, parent=new.parent) != old:
            lines.append("declaration changed")
    return tuple(lines)


def _by_name(lock: Lock | None) -> dict[tuple[int, str], Artifact]:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs] if lock else []
    return {(0 if isinstance(artifact, Wheel) else 1, artifact.name): artifact for artifact in artifacts}
