"""The computed layer: what maintainer scripts, ldconfig and dpkg would have made of the whole set.

It reads the locked packages and the paths of the layers below, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.layer import cuda_links, ldcache
from envbuilder.layer.debian import certificates, keystore, pam, shells, users
from envbuilder.layer.debian.alternatives import alternative_entries, alternatives_in, on_architecture
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.dpkg import dpkg_entries
from envbuilder.layer.debian.effects import (
    Account,
    Alternative,
    Copy,
    Divert,
    Effect,
    Join,
    Own,
    effect_entries,
    is_joined,
)
from envbuilder.layer.debian.known_scripts import REVIEWED, TABLE_VERSION
from envbuilder.layer.debian.maintainer import effects_of
from envbuilder.layer.debian.overlaps import check_diversions, check_overlaps
from envbuilder.layer.debian.part import Parts, part_key
from envbuilder.layer.debian.system import System, read_system
from envbuilder.layer.tree import Entry, Placed, file, symlink
from envbuilder.lock.model import Deb, Lock
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci.platform import Platform

#: Part of the recipe of the computed layer, with the table's own version.
COMPUTED_VERSION = f"3.{TABLE_VERSION}"
#: Package files that effects copy or give another owner.
_COPIED = frozenset(
    effect.source if isinstance(effect, Copy) else effect.path
    for review in REVIEWED.values()
    for effect in review.effects
    if isinstance(effect, Copy | Own)
)
#: What effects join to one file.
_JOINS = tuple(effect for review in REVIEWED.values() for effect in review.effects if isinstance(effect, Join))
_NSSWITCH = "usr/share/libc-bin/nsswitch.conf"
#: What ``_wanted`` depends on, beside the code of the modules that it asks: COMPUTED_VERSION stands for that.
_WANTED_RULE = f"{COMPUTED_VERSION} {sorted(_COPIED)} {_JOINS}"
#: Files that container runtimes mount over, and so must be there in a read-only root.
_MOUNT_POINTS = ("etc/hostname", "etc/hosts", "etc/resolv.conf")


def computed_entries(
    lock: Lock,
    placed_below: Sequence[Sequence[Placed]],
    artifacts: ArtifactSource,
    *,
    site_packages: str,
    allow: frozenset[str] = frozenset(),
    memory: Path | None = None,
    told: Mapping[str, bytes] | None = None,
    parent: Lock | None = None,
) -> Iterator[Entry]:
    """The tree of the computed layer, each path once; the caller gives parents the modes that they have below.

    placed_below: the layers under it, lowest first, a parent's computed layer included.
    site_packages: tree path of the environment's Python packages.
    allow: packages whose unknown maintainer scripts are taken to do nothing.
    memory: folder of what earlier calls took from packages; these are not opened again. told: the same as others say.
    parent: of the computed layer below, if it holds: what of it would be the same is left out, so that it, and what
        the parent gave in its place, shows through.

    Raises:
        UnknownScript: a package has a maintainer script whose effects nobody wrote down.
        SharedPath, InPrefix, DivertedPath: as ``check_packages``.
        BadDeb: a package is malformed.
    """
    parts = Parts(memory, rule=_WANTED_RULE, told=told) if memory else None
    system = read_system(lock.debs, artifacts, placed_below, _wanted, parts=parts)
    made: list[Entry] = []
    if parent is None or (_digests(parent), frozenset(parent.allow_scripts)) != (_digests(lock), allow):
        effects = check_packages(system.controls.values(), allow=allow)
        made = list(_unique(_system_entries(system, lock.platform, effects, allow)))
    made += _loader_entries(system.with_links(made), site_packages)
    yield from (entry for entry in made if parent is None or not _shows(entry, system.tree.get(entry.path)))


def check_packages(controls: Iterable[Control], *, allow: frozenset[str]) -> dict[str, tuple[Effect, ...]]:
    """What the maintainer scripts of packages would do, by package, once it is known that these can be in one image.

    Raises:
        UnknownScript: a script's effects are not known, and its package is not in ``allow``.
        SharedPath, DivertedPath: two packages ship different files at one path, or one diverts the other's.
        InPrefix: one reaches into the directory of the Python packages.
    """
    packages = tuple(controls)
    check_overlaps(packages)
    effects = effects_of(packages, allow=allow)
    check_diversions(packages, _diversions(effects))
    return effects


def _diversions(effects: Mapping[str, Sequence[Effect]]) -> dict[str, list[Divert]]:
    return {name: [item for item in items if isinstance(item, Divert)] for name, items in effects.items()}


def part_name(deb: Deb) -> str:
    """Under what ``memory`` has what is taken from ``deb``."""
    return part_key(deb, _WANTED_RULE)


def _digests(lock: Lock) -> set[Digest]:
    return {deb.digest for deb in lock.debs}


def _shows(entry: Entry, below: Placed | None) -> bool:
    """Whether the layers below have ``entry`` as it is; of a regular file nobody knows without its bytes."""
    if below is None or entry.is_file:
        return False
    return all(getattr(entry, name) == getattr(below, name) for name in ("mode", "uid", "gid", "link", "xattrs"))


def _wanted(path: str) -> bool:
    modules = (certificates, ldcache, pam, shells, users)
    if path in _COPIED or path == _NSSWITCH or any(module.wanted(path) for module in modules):
        return True
    return any(is_joined(effect, path) for effect in _JOINS)


def _system_entries(
    system: System, platform: Platform, effects: dict[str, tuple[Effect, ...]], allow: frozenset[str]
) -> Iterator[Entry]:
    every = [effect for name in sorted(effects) for effect in effects[name]]
    diversions = _diversions(effects)
    overrides = [item for item in every if isinstance(item, Own) and item.override]
    yield from dpkg_entries(system, platform, diversions, overrides)
    if "base-passwd" in system.controls:
        known = users.accounts(system, [item for item in every if isinstance(item, Account)])
        yield from users.account_entries(known, shadow="passwd" in system.controls)
        for effect in every:
            yield from effect_entries(effect, system, known.uids, known.gids)
    yield from alternative_entries(_alternatives(system, effects, allow, platform), system)
    parts: tuple[tuple[str, Callable[[System], Iterable[Entry]]], ...] = (
        ("debianutils", shells.shell_entries),
        ("libpam-runtime", pam.pam_entries),
        ("ca-certificates", lambda installed: certificates.certificate_entries(installed.contents)),
        ("ca-certificates-java", lambda installed: keystore.keystore_entries(installed.contents)),
        ("libc-bin", lambda installed: [file("etc/nsswitch.conf", installed.read(_NSSWITCH))]),
    )
    for package, entries in parts:
        if package in system.controls:
            yield from entries(system)
    for path in _MOUNT_POINTS:
        if path not in system.tree:
            yield file(path, b"")
    yield file("etc/machine-id", b"")  # empty: each running system has one of its own (machine-id(5))


def _alternatives(
    system: System, effects: Mapping[str, Sequence[Effect]], allow: frozenset[str], platform: Platform
) -> Iterator[Alternative]:
    for name in sorted(system.controls.keys() - allow):
        chosen = [effect for effect in effects.get(name, ()) if isinstance(effect, Alternative)]
        reviewed = [on_architecture(effect, platform.debian) for effect in chosen]
        script = system.controls[name].script("postinst")
        yield from reviewed or alternatives_in(script, source=f"{name}: postinst")


def _loader_entries(system: System, site_packages: str) -> Iterator[Entry]:
    """The CUDA link farm, ld.so.cache and the soname links that ldconfig would add."""
    roots = cuda_links.toolkit_roots(system, site_packages)
    yield from cuda_links.cuda_entries(system, roots)
    if "libc-bin" not in system.controls:
        return
    extra = "".join(f"{directory}\n" for directory in cuda_links.loader_directories(system, roots)).encode()
    contents = dict(system.contents)
    if extra:
        contents[cuda_links.LOADER_CONF] = extra
    conf = ldcache.configured_directories(
        lambda path: contents.get(path, b""),
        lambda path: sorted(name.rpartition("/")[2] for name in contents if name.rpartition("/")[0] == path),
    )
    found = ldcache.scan(system, (*conf, *ldcache.SYSTEM_DIRECTORIES))
    for path, target in found.links:
        yield symlink(path, target)
    yield file("etc/ld.so.cache", ldcache.cache_bytes(found.libraries))


def _unique(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The first entry of each path: Debian's own come before our stand-ins."""
    seen: set[str] = set()
    for entry in entries:
        if entry.path not in seen:
            seen.add(entry.path)
            yield entry
