"""``envbuilder why ENV PACKAGE``: what requires a package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import click
from packaging.utils import canonicalize_name

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.targets import host_platform_of
from envbuilder.errors import SpecError
from envbuilder.lock.model import Lock
from envbuilder.lock.why import Need, chains, marker_environment, needs, wheel_requires
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import EnvSpec
from envbuilder.spec.project import lineage


class NotInLock(SpecError):
    """A package was asked about that the environment does not have."""


@click.command(name="why", epilog="Example: envbuilder why ai idna")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.argument("package")
@click.option("--fetch", is_flag=True, help="Fetch wheels that are not in the cache, to read what they require.")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@common
def command(app: App, environment: str, package: str, fetch: bool, platform: str) -> Result:
    """Say by which chains of requirements PACKAGE came into ENV, from the wheels' own metadata.

    Only wheels that this machine has are read; how many are not here is said.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    lock = fresh_locks(app.need_project(), environment, parsed)[-1]
    name = canonicalize_name(package)
    version = {wheel.name: wheel.version for wheel in lock.wheels}.get(name)
    if version is None:
        raise NotInLock(f"{environment}: has no Python package {name!r}", hint=_hint(lock, name))
    specs = list(lineage(app.need_project(), environment))
    who, unread = requirers(app, lock, specs, fetch=fetch)
    found = chains(name, who)
    if unread:
        app.output.note(f"{environment}: {unread} of {len(lock.wheels)} wheels are not on this machine: use --fetch")
    value = {
        "name": name,
        "version": version,
        "chains": [[{"name": need.name, "requires": need.requirement} for need in chain] for chain in found],
        "unread": unread,
    }
    lines = [_line(environment, chain) for chain in found]
    return Result("\n".join([f"{name} {version}", *(lines or ["  nothing that was read requires it"])]), value)


def _hint(lock: Lock, name: str) -> str:
    if name in {deb.name for deb in lock.debs}:
        return f"{name} is one of its Debian packages: in the image, 'dpkg -S' and 'dpkg -l' tell more."
    near = get_close_matches(name, [wheel.name for wheel in lock.wheels], n=3)
    return f"Did you mean {' or '.join(near)}?" if near else f"See what it has: envbuilder export {lock.name}."


def requirers(
    app: App, lock: Lock, specs: Sequence[EnvSpec], *, fetch: bool
) -> tuple[Mapping[str, tuple[Need, ...]], int]:
    """Who asks for each package of ``lock``, and how many of its wheels could not be read."""
    cache = artifact_cache(app, os.environ)
    read = [wheel for wheel in lock.wheels if fetch or cache.has(wheel)]
    requires = {wheel.name: wheel_requires(cache.file(wheel), source=wheel.file) for wheel in read}
    pinned = [f"{name}=={version}" for spec in specs if spec.pins for name, version in spec.pins.versions]
    roots = [*(requirement for spec in specs for requirement in spec.requires), *pinned]
    return needs(roots, requires, marker_environment(lock)), len(lock.wheels) - len(read)


def _line(environment: str, chain: Sequence[Need]) -> str:
    return "  " + " -> ".join([environment, *(need.requirement for need in chain)])
