"""The cache folder: what is in it, by kind, and when each was last used.

Nothing in it is a promise: what goes is fetched or made again. Whoever locks or builds says so for as long as it does
(``in_use``), and what it asks for is noted as used (``use``). Files of no kind are nobody's to judge, and no link is
followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

#: The file that says that something uses the cache.
_IN_USE = "in-use"
#: Seconds within which a use is noted once.
NOTED_S = 3600.0
#: Seconds that a use waits for who judges the file, which takes microseconds, and between two looks: whoever may read
#: a file may lock it, and shall not hold up who builds.
_JUDGED_S, _LOOK_S = 1.0, 0.01
#: Bytes that stat(2) counts in.
_BLOCK = 512
_NOTE = r"[a-z0-9][a-z0-9._-]*\.json\.zst"


@dataclass(frozen=True, slots=True)
class _Kind:
    """name: what people call it. folder: where it is. pattern: how it is called there.

    shared: it may go while others use the cache, because they come to no harm without.
    """

    name: str
    folder: str
    pattern: str
    tree: bool = False
    shared: bool = True


#: Who writes them: lock/fetch.py; mount/unpack/layers.py, layer/interpreter.py (layer/kept_tree.py); image/records.py;
#: lock/lists.py; registry/known.py. The rest is what those left who were killed (cli/verify.py, store/files.py).
_KINDS = (
    _Kind("wheels and debs", "sha256/*", r"[0-9a-f]{64}"),
    _Kind("bases", "bases", r"[0-9a-f]{64}", tree=True),
    _Kind("interpreters", "interpreters", r"python[0-9.]+-[0-9a-f]{32}", tree=True),
    _Kind("notes of debs", "debs", _NOTE, shared=False),
    _Kind("lists of archives", "apt", r"[0-9a-f]{32}", tree=True, shared=False),
    _Kind("notes of registries", "registries", _NOTE),
    _Kind("unfinished", "sha256/*", r"[0-9a-f]{64}\.partial|[0-9a-f]{32}", shared=False),
    _Kind("unfinished", "", r"\.adopting-\w+", shared=False),
    _Kind("unfinished", "", r"verify-\w+", tree=True, shared=False),
    *(
        _Kind("unfinished", folder, r"\..+\.[0-9a-f]{8}|\.unpacking-\w+", tree=True, shared=False)
        for folder in ("bases", "interpreters", "apt")
    ),
)
KINDS = tuple(dict.fromkeys(kind.name for kind in _KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """One thing of the cache. path: below its folder. size: bytes on disk. used_at_s: seconds since the epoch."""

    kind: str
    path: str
    size: int
    used_at_s: float
    tree: bool
    shared: bool


def use(file: Path) -> os.stat_result | None:
    """Note that ``file`` of the cache is used now, as far as this user may; what it is, None where there is none.

    What was noted no collection removes: one that judges the file at this moment is waited for.
    """
    with contextlib.suppress(OSError):
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _share(fd)
            status = os.fstat(fd)
            if time.time() - status.st_mtime > NOTED_S:
                with contextlib.suppress(OSError):  # another user's
                    os.utime(fd)
            return status if status.st_nlink else None
        finally:
            os.close(fd)
    return None


def _share(fd: int) -> None:
    end_s = time.monotonic() + _JUDGED_S
    while time.monotonic() < end_s:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203 - a wait
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks
            return
        else:
            return


def is_cached(file: Path, size: int) -> bool:
    """Whether ``file`` of the cache has ``size`` bytes; then it is used."""
    status = use(file)
    return status is not None and status.st_size == size


def in_use(directory: Path) -> int:
    """Say that the cache ``directory`` is used, until the descriptor that is given is closed; -1 where nobody can."""
    fd = -1
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fd = _open_in_use(directory)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("%s: waiting for 'cache gc'", directory)
            fcntl.flock(fd, fcntl.LOCK_SH)
    except OSError:
        if fd >= 0:
            os.close(fd)
        return -1
    return fd


def _open_in_use(directory: Path) -> int:
    """The owner's alone: whoever may open it may lock it, and so hold up all others. To be written: NFS wants that."""
    return os.open(directory / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def contents(directory: Path) -> list[Cached]:
    """All of the cache ``directory`` that is of a known kind."""
    found = []
    for kind in _KINDS:
        for folder in _folders(directory, kind.folder):
            with opened_folder(directory, folder) as inside:
                names = [name for name in _names(inside) if re.fullmatch(kind.pattern, name)]
                found += [each for name in names if inside and (each := _look(inside, folder, name, kind))]
    return found


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[bool]:
    """Hold the cache against all others, if nobody uses it; whether that is so."""
    fd, alone = -1, True
    try:
        fd = _open_in_use(directory)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        pass  # there is no cache yet
    except OSError:
        alone = False
    try:
        yield alone
    finally:
        if fd >= 0:
            os.close(fd)


def _folders(directory: Path, folder: str) -> list[str]:
    above, star, _ = folder.partition("/*")
    if not star:
        return [folder]
    with opened_folder(directory, above) as inside:
        return sorted(f"{above}/{name}" for name in _names(inside) if re.fullmatch(r"[0-9a-f]{2}", name))


@contextlib.contextmanager
def opened_folder(directory: Path, folder: str) -> Iterator[Path | None]:
    """``folder`` below ``directory``, reached through no link, as a path that stays there; None if there is none."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fds: list[int] = []
    try:
        with contextlib.suppress(OSError):
            fds.append(os.open(directory, flags))
            for name in filter(None, folder.split("/")):
                fds.append(os.open(name, flags | os.O_NOFOLLOW, dir_fd=fds[-1]))
        there = len(fds) == 1 + len([*filter(None, folder.split("/"))])
        yield Path(f"/proc/self/fd/{fds[-1]}") if there else None
    finally:
        for fd in fds:
            os.close(fd)


def _names(inside: Path | None) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(inside) if inside else []  # noqa: PTH208 - a cache has thousands
    return []


def _look(inside: Path, folder: str, name: str, kind: _Kind) -> Cached | None:
    """``name`` in the folder that is open as ``inside``; None where it is no such thing."""
    path = inside / name
    try:
        status = path.lstat()
        if not (stat.S_ISDIR if kind.tree else stat.S_ISREG)(status.st_mode):
            return None
        return Cached(
            kind=kind.name,
            path=f"{folder}/{name}".lstrip("/"),
            size=_size(path) if kind.tree else status.st_blocks * _BLOCK,
            used_at_s=_tree_used_at_s(path) if kind.tree else used_at_s(status),
            tree=kind.tree,
            shared=kind.shared,
        )
    except FileNotFoundError:
        return None


def _size(tree: Path) -> int:
    """Bytes on disk; what has two names counts once."""
    blocks = {}
    for path, folders, files in os.walk(tree):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                status = os.lstat(f"{path}/{name}")
                blocks[status.st_dev, status.st_ino] = status.st_blocks
    return sum(blocks.values()) * _BLOCK


def used_at_s(status: os.stat_result) -> float:
    """When a file was asked for, or read by somebody who did not say so."""
    return max(status.st_mtime, status.st_atime)


def _tree_used_at_s(tree: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return used_at_s(record_of(tree).lstat())
    return max([tree.lstat().st_ctime, *(used_at_s((tree / name).lstat()) for name in _names(tree))])


def record_of(tree: Path) -> Path:
    """What is remembered of a tree, and held while it is made (layer/kept_tree.py)."""
    return tree.with_name(f"{tree.name}.lock")
