"""Trees of files that stay on this machine and are used again: whole, or made anew.

A tree may lose a part behind our back: a removal that was stopped, a cleaner that goes by age. Whatever goes changes
the time of the directory that it was in (POSIX unlink(2)), so that only directories are looked at, a tenth of a tree:
17,000 of 154,000 names, in 50 ms. What a directory has gained (mount points that a container runtime makes) does not
count.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from envbuilder.store.cache import use
from envbuilder.store.files import only_one

#: Bytes of what is remembered of a tree; 17,000 directories are 1.5 MB.
_MAX_RECORD = 256 << 20


def kept_tree(tree: Path, fill: Callable[[Path], None]) -> Path:
    """``tree``, made now unless it is there and whole. fill: lays the files into an empty directory.

    Two processes that ask at once make it once; one that is killed leaves nothing that looks finished. A tree that
    lost a part is put aside, for who still stands in it, until the next one is made.

    Raises:
        OSError: the disk refuses it. Whatever ``fill`` raises.
    """
    folder, record = tree.parent, tree.with_name(f"{tree.name}.lock")
    if use(record) and is_whole(tree, record):
        return tree
    folder.mkdir(parents=True, exist_ok=True)
    # Others who use this cache read what is remembered.
    with only_one(record, mode=0o644) as held:
        if is_whole(tree, record):
            return tree
        for leftover in folder.glob(f".{tree.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary = _beside(tree)
        temporary.mkdir()
        try:
            temporary.chmod(0o755)  # whatever our umask is
            fill(temporary)
            found = _directories(temporary)
            with contextlib.suppress(FileNotFoundError):
                tree.rename(_beside(tree))
            os.ftruncate(held, 0)
            with open(held, "w", closefd=False) as out:
                json.dump(found, out)
            temporary.rename(tree)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return tree


def is_whole(tree: Path, record: Path) -> bool:
    """Whether ``tree`` is there and lost nothing since ``record`` was written of it."""
    try:
        with record.open() as file:
            known = json.loads(file.read(_MAX_RECORD))
        return bool(known) and all(_has(f"{tree}/{path}", time_ns, names) for path, time_ns, names in known)
    except (OSError, ValueError, TypeError):
        return False


def _has(directory: str, time_ns: int, names: int) -> bool:
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        return False
    return status.st_mtime_ns == time_ns or len(os.listdir(directory)) >= names  # noqa: PTH208 - thousands of them


def _directories(tree: Path) -> list[tuple[str, int, int]]:
    """Every directory of ``tree``: path, time, how many names it has. One that is too deep to be named is not here."""
    found = []
    for path, folders, files in os.walk(tree):
        with contextlib.suppress(OSError):
            found.append((os.path.relpath(path, tree), os.lstat(path).st_mtime_ns, len(folders) + len(files)))
    return found


def _beside(tree: Path) -> Path:
    return tree.with_name(f".{tree.name}.{secrets.token_hex(4)}")
