"""Open paths of a foreign tree without ever leaving it, whatever its symbolic links say.

openat2(2) with RESOLVE_IN_ROOT (Linux 5.6) resolves them as a chroot would, in the kernel, so that
nothing can be swapped between a check and its use.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_HOW = struct.Struct("<QQQ")
_O_PATH = 0o10000000


def open_in(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open ``path`` below the open directory ``root``; symbolic links, absolute ones too, stay inside.

    Raises:
        OSError: as open(2); ENOSYS before Linux 5.6.
    """
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    opened = int(_libc.syscall(_OPENAT2, root, os.fsencode(path), how, len(how)))
    if opened < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return opened


def open_directory(root: int, path: str) -> int:
    """Open the directory ``path`` below ``root``, for use as ``dir_fd``.

    Raises:
        OSError: it is not there or not a directory.
    """
    return open_in(root, path or ".", _O_PATH | os.O_DIRECTORY)


def make_directory(root: int, path: str, mode: int = 0o755) -> int:
    """Open the directory ``path`` below ``root``; it and its parents are made when missing.

    Raises:
        OSError: something else than a directory is in the way.
    """
    try:
        return open_directory(root, path)
    except FileNotFoundError:
        parent, _, name = path.rpartition("/")
        above = make_directory(root, parent, mode)
        try:
            os.mkdir(name, mode, dir_fd=above)
            os.chmod(name, mode, dir_fd=above)  # whatever our umask is
        except FileExistsError:
            # A link to a place that does not exist: nothing of ours may be made through it.
            raise OSError(errno.ENOTDIR, "a dangling link in the way", path) from None
        finally:
            os.close(above)
        return open_directory(root, path)


def read_in(root: Path, path: str, most: int) -> bytes:
    """At most ``most`` bytes of the regular file ``path`` of the tree at ``root``; empty when there is none."""
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = open_in(top, path, _O_PATH)
    except OSError:
        return b""
    finally:
        os.close(top)
    try:
        # Looked at before it is opened: opening a device does something already.
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return b""
        with open(f"/proc/self/fd/{found}", "rb") as file:
            return file.read(most)
    finally:
        os.close(found)
