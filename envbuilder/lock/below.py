"""What stands below the Python packages of an image: Debian's packages or a system of others, and its interpreter."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from packaging.version import Version

from envbuilder.errors import SpecError
from envbuilder.lock.archives import find_archives, snapshot_archives
from envbuilder.lock.debian import Installed, resolve_debs, upstream_version
from envbuilder.lock.machine import Machine
from envbuilder.lock.model import Deb, ForeignSystem, Interpreter, Lock
from envbuilder.lock.uv import PythonTarget
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import Base, EnvSpec


class NoInterpreter(SpecError):
    """The Debian packages do not bring the declared Python, or no C library."""


class OtherBase(SpecError):
    """The image that an environment is laid over is not what the declaration says of it."""


def debs_by_name(spec: EnvSpec, parent: Lock | None) -> tuple[str, ...]:
    """Debian packages asked for by name, the parent's included."""
    if spec.base and spec.base.system:
        return ()
    named = spec.base.packages if spec.base else ()
    return tuple(sorted({*named, *(parent.base if parent else [f"python{spec.python}"])}))


def debs_below(
    spec: EnvSpec,
    platform: Platform,
    machine: Machine,
    existing: Lock | None,
    parent: Lock | None,
    anew: Collection[str],
) -> tuple[Deb, ...]:
    """The Debian packages of the image: the existing lock's and the parent's where nothing asks for others.

    anew: packages of the parent that are wanted as the archive has them now.

    Raises:
        What ``resolve_debs`` raises. NoMirror: this machine names no archive.
    """
    packages = debs_by_name(spec, parent)
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
        lists=machine.lists,
    )


def _moment(debs: Sequence[Deb]) -> str:
    """The moment of the snapshot that ``debs`` were chosen from."""
    return debs[0].archive.partition("@")[2] if debs else ""


def system_below(
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


def python_target(
    spec: EnvSpec,
    platform: Platform,
    debs: Sequence[Deb],
    parent: Lock | None,
    system: ForeignSystem | None,
    glibc: str,
) -> tuple[Interpreter, PythonTarget]:
    """The interpreter of the image, and what wheels must run on there.

    Raises:
        NoInterpreter: nothing below brings it, or a C library.
    """
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
