"""Whether a blob is whole on this node, and holding it so: what a start asks before anything else (store.py).

A start of an image that is whole imports this before its command runs, so it imports little itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """What tells this boot of the host from others."""
    return _BOOT_ID.read_text().strip()


def present_file(folder: Path) -> Path:
    """Where the blob in ``folder`` notes which chunks are here, durable or not."""
    return folder / f"present.{boot_id()}"


def is_whole(folder: Path, size: int) -> bool:
    """Whether every chunk of the blob in ``folder`` is here: its ``data`` are the whole tar of ``size`` bytes."""
    try:
        if (folder / "data").stat().st_size != size:
            return False
        return (folder / "complete").exists() or 0 not in present_file(folder).read_bytes()
    except OSError:
        return False


def hold(folder: Path) -> int:
    """A descriptor that keeps the blob in ``folder`` from being evicted until it is closed.

    Raises:
        OSError: it is not here.
    """
    held = os.open(folder / "data", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        if not os.fstat(held).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "evicted in this moment", str(folder))
        os.utime(folder / "lock")
    except BaseException:
        os.close(held)
        raise
    return held
