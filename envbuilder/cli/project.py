"""Environments of the project as the verbs need them: locks, their parents, and this machine's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.layer.deb import control_of
from envbuilder.layer.debian.dpkg import paragraph
from envbuilder.lock.archives import known_archives
from envbuilder.lock.check import require_fresh
from envbuilder.lock.codec import MAX_SIZE, load
from envbuilder.lock.download import http_pool
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.logins import apt_logins, with_login
from envbuilder.lock.machine import Machine
from envbuilder.lock.model import Deb, Lock
from envbuilder.lock.settings import read_python_indexes
from envbuilder.oci.platform import Platform
from envbuilder.proc import run
from envbuilder.spec.project import lineage, lock_file
from envbuilder.spec.toml import read_document


def read_lock(project: Path, name: str, platform: Platform) -> Lock | None:
    """The lock of environment ``name``; None when there is no file.

    Raises:
        InvalidLock, SpecError: it is none, or cannot be read.
    """
    file = lock_file(project, name, platform)
    source = str(file.relative_to(project))
    data = read_document(file, most=MAX_SIZE, source=source)
    return None if data is None else load(data, source=source)


def fresh_locks(project: Path, name: str, platform: Platform) -> tuple[Lock, ...]:
    """The locks of ``name`` and of all that it extends, the root first.

    Raises:
        StaleLock: one of them is missing or no longer the answer to its declaration.
    """
    locks: list[Lock] = []
    for spec in list(lineage(project, name))[::-1]:
        parent = locks[-1] if locks else None
        locks.append(require_fresh(spec, platform, read_lock(project, spec.name, platform), parent))
    return tuple(locks)


def compiling_packages(project: Path | None, lock: Lock, host: Platform) -> tuple[tuple[Deb, ...], Platform] | None:
    """What compiles for an image that ``host`` cannot run: the packages that the project locked for it there.

    None: it can, or nothing is locked for it; building then asks for an interpreter that runs here.
    """
    if project is None or host == lock.platform:
        return None
    ours = read_lock(project, lock.name, host)
    return (ours.debs, host) if ours else None


def lock_machine(app: App, environ: Mapping[str, str], *, check_bytes: bool = False) -> Machine:
    """How this machine reaches indexes and archives, for locking.

    check_bytes: whether files of other indexes than the default one are fetched and hashed when they are new.
    """
    cache = artifact_cache(app, environ)
    return Machine(
        runner=run,
        environment=environ,
        indexes=read_python_indexes(environ, app.settings.section("indexes")),
        mirrors=app.settings.section("mirrors"),
        lists=app.cache_directory / "apt",
        bytes_of=cache.adopt,
        distrust=check_bytes,
        status_of=lambda deb: paragraph(control_of(cache.file(deb))).decode("utf-8", "surrogateescape"),
    )


def artifact_cache(app: App, environ: Mapping[str, str]) -> ArtifactCache:
    """Verified wheels and debs of this machine, fetched from its indexes and archives when missing."""
    logins = apt_logins()
    archives = known_archives(app.settings.section("mirrors"))
    return ArtifactCache(
        app.use_cache(),
        indexes=read_python_indexes(environ, app.settings.section("indexes")).all,
        mirrors={role: with_login(url, logins, plain_http=False) for role, url in archives.items()},
        pool=http_pool(environ),
    )
