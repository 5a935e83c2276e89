"""Entry: one path of a tree. What every artefact becomes and every layer is written from."""

from __future__ import annotations

import io
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

#: mtime of every entry, seconds since the epoch; 1, as in Nix store paths.
SOURCE_EPOCH_S = 1

DIRECTORY = stat.S_IFDIR
FILE = stat.S_IFREG
SYMLINK = stat.S_IFLNK


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a tree with what is at it.

    path: as made by ``paths.entry_path``: relative, '/'-separated.
    mode: st_mode, type and permission bits, setuid included.
    size: bytes; 0 unless a regular file.
    link: symbolic link: its target as it stands. Regular file: if not "", this is a hard
        link to that tree path, which is a regular file of the same layer.
    device: (major, minor) of a character or block device.
    xattrs: (full name, value), sorted by name.
    open: a fresh stream each call, the same bytes each time; None unless a regular file with data.
    whiteout: whether it hides what the layers below have (its name then begins with ``.wh.``). No
        artefact's entry does; a plan that means it says so.
    """

    path: str
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    link: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, bytes], ...] = ()
    open: Callable[[], BinaryIO] | None = None
    whiteout: bool = False

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether a regular file, hard links to one included."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self.mode)


def directory(path: str, mode: int = 0o755) -> Entry:
    """A directory owned by root."""
    return Entry(path=path, mode=DIRECTORY | mode)


def symlink(path: str, target: str) -> Entry:
    """A symbolic link owned by root; its mode is 0777, as on Linux."""
    return Entry(path=path, mode=SYMLINK | 0o777, link=target)


#: Names that hide (OCI image-spec 1.1 layer.md, "Whiteouts"): what follows the first, or all that the folder had below.
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


def whiteout(path: str) -> Entry:
    """What hides ``path`` of the layers below (OCI image-spec 1.1 layer.md, "Whiteouts")."""
    parent, _, name = path.rpartition("/")
    return Entry(path=f"{parent}/{WHITEOUT}{name}" if parent else WHITEOUT + name, mode=FILE | 0o644, whiteout=True)


def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
    """A regular file owned by root that holds ``data``."""
    return Entry(path=path, mode=FILE | mode, size=len(data), open=lambda: io.BytesIO(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An entry as it lies in a written tar: what EROFS metadata and the computed layer need.

    offset: of the data in the uncompressed tar, a multiple of 4096; 0 for an empty file or no file.
    soname: DT_SONAME of a shared library ("" when none), and ``elf_flags`` as ld.so.cache wants
        them; filled for ELF shared objects only, so that ld.so.cache is made without the bytes.
    tail: the bytes behind the last whole 4096, of a file whose end is the end of a tar block: no zero
        follows it in the tar, so EROFS metadata must hold the end (docs/formats/lazy-index.md).
    mtime_s: seconds since the epoch; of entries that we write always SOURCE_EPOCH_S.
    """

    path: str
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    link: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, bytes], ...] = ()
    offset: int = 0
    soname: str = ""
    elf_flags: int = 0
    tail: bytes = b""
    mtime_s: int = SOURCE_EPOCH_S
