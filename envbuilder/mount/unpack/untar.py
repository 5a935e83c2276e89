"""Lay the tar of a layer over a tree.

Layers are hostile archives: every path goes through ``entry_path`` and is opened inside the tree
(inroot.py), the last component never through a link. OCI image-spec 1.1 layer.md, "Whiteouts".
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from envbuilder.digest import BLOCK_SIZE, Readable
from envbuilder.layer.foreign_tar import MAX_ENTRIES, BadLayer, BoundedMember
from envbuilder.layer.tree import OPAQUE, WHITEOUT
from envbuilder.mount.unpack.inroot import make_directory, open_directory
from envbuilder.paths import entry_path

_XATTR = "SCHILY.xattr."
#: Folders in each other; Python's own rmtree and our walk take a frame for each (its limit is 1000).
_MAX_DEPTH = 200
#: Bytes of a sparse file: its holes cost nothing in the tar, but are written.
_MAX_SPARSE = 1 << 30


def unpack_tar(stream: Readable, directory: Path, *, source: str) -> None:
    """Lay the tar in ``stream`` over what is in ``directory``, whiteouts applied.

    Raises:
        UnsafePath, BadLayer: a path or a link leads outside, or what is there is in the way.
    """
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own: set[str] = set()  # made by this layer: its own whiteouts do not touch them
        late: list[tuple[str, tarfile.TarInfo]] = []
        with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|", encoding="utf-8", tarinfo=BoundedMember) as tar:
            for number, info in enumerate(tar):
                if number >= MAX_ENTRIES:
                    raise BadLayer(f"{source}: more than {MAX_ENTRIES} entries")
                if info.issparse() and info.size > _MAX_SPARSE:
                    raise BadLayer(f"{source}: {info.name[:200]!r}: a sparse file of {info.size} bytes")
                if path := _lay(root, info, tar, own, source):
                    late.append((path, info))
        # Writing into a directory changed its times; what was made last is nested deepest.
        for path, info in reversed(late):
            with suppress(OSError), _directory(root, path) as opened:
                os.utime(f"/proc/self/fd/{opened}", (info.mtime, info.mtime))
    except (tarfile.TarError, ValueError) as error:
        raise BadLayer(f"{source}: {error}") from error
    finally:
        os.close(root)


def _lay(root: int, info: tarfile.TarInfo, tar: tarfile.TarFile, own: set[str], source: str) -> str:
    """Lay one entry; its path when it is a directory, else ""."""
    if info.name.strip("/") in ("", "."):
        path = ""
    else:
        path = entry_path(info.name, source=source)
        if path.count("/") >= _MAX_DEPTH:
            raise BadLayer(f"{source}: {path[:200]}: more than {_MAX_DEPTH} levels deep")
    try:
        if path:
            _apply(root, path, info, tar, own)
        else:
            _chown(root, info)
            os.chmod(root, info.mode & 0o7777)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        raise BadLayer(f"{source}: {path}: {error.strerror}") from error
    except (ValueError, OverflowError) as error:
        # A user id, time or device number that no kernel takes, or a NUL in a name.
        raise BadLayer(f"{source}: {path}: {error}") from error
    return path if info.isdir() else ""


def _apply(root: int, path: str, info: tarfile.TarInfo, tar: tarfile.TarFile, own: set[str]) -> None:
    above, _, name = path.rpartition("/")
    parent = make_directory(root, above)
    try:
        if name == OPAQUE:
            for child in os.listdir(f"/proc/self/fd/{parent}"):  # noqa: PTH208 - a descriptor
                if f"{above}/{child}".lstrip("/") not in own:
                    _remove(parent, child)
            return
        if name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise OSError(errno.EINVAL, "a whiteout of nothing")
            if f"{above}/{hidden}".lstrip("/") not in own:
                _remove(parent, hidden)
            return
        _make(root, parent, name, info, tar)
        parts = path.split("/")
        own.update("/".join(parts[: count + 1]) for count in range(len(parts)))
    finally:
        os.close(parent)


def _make(root: int, parent: int, name: str, info: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    there = _stat(parent, name)
    if there is not None and not (info.isdir() and stat.S_ISDIR(there.st_mode)):
        _remove(parent, name)
        there = None
    if info.islnk():
        _hard_link(root, parent, name, info.linkname)
        return
    if info.isdir():
        if there is None:
            os.mkdir(name, 0o700, dir_fd=parent)
    elif info.issym():
        os.symlink(info.linkname, name, dir_fd=parent)
    elif info.isreg():
        _write(parent, name, info, tar)
    elif info.isfifo():
        os.mkfifo(name, 0o600, dir_fd=parent)
    elif info.ischr() or info.isblk():
        kind = stat.S_IFCHR if info.ischr() else stat.S_IFBLK
        os.mknod(name, kind | 0o600, os.makedev(info.devmajor, info.devminor), dir_fd=parent)
    else:
        raise OSError(errno.EINVAL, f"a tar entry of type {info.type!r}")
    _chown(name, info, parent)
    if not info.issym():
        # The name is ours since a moment and no link; chmod after chown, which clears setuid.
        os.chmod(name, info.mode & 0o7777, dir_fd=parent)
    for key, text in info.pax_headers.items():
        if key.startswith(_XATTR):
            value = text.encode("utf-8", "surrogateescape")
            where = f"/proc/self/fd/{parent}/{name}"
            os.setxattr(where, key.removeprefix(_XATTR), value, follow_symlinks=False)
    os.utime(name, (info.mtime, info.mtime), dir_fd=parent, follow_symlinks=False)


def _chown(name: str | int, info: tarfile.TarInfo, parent: int | None = None) -> None:
    """Give what is at ``name`` the owner that the tar names, where there is such an owner."""
    try:
        if parent is None:
            os.chown(name, info.uid, info.gid)
        else:
            os.chown(name, info.uid, info.gid, dir_fd=parent, follow_symlinks=False)
    except OSError as error:
        # user_namespaces(7): an id that a user without root has not in his name space. All files there are his.
        if error.errno != errno.EINVAL:
            raise


def _write(parent: int, name: str, info: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    data = tar.extractfile(info)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb", buffering=0) as out:
        if data is not None:
            shutil.copyfileobj(data, out, BLOCK_SIZE)


def _hard_link(root: int, parent: int, name: str, target: str) -> None:
    above, _, last = entry_path(target, source="hard link").rpartition("/")
    with _directory(root, above) as there:
        os.link(last, name, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)


def _stat(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _remove(parent: int, name: str) -> None:
    found = _stat(parent, name)
    if found is None:
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(f"/proc/self/fd/{parent}/{name}")
    else:
        os.unlink(name, dir_fd=parent)


@contextmanager
def _directory(root: int, path: str) -> Iterator[int]:
    opened = open_directory(root, path)
    try:
        yield opened
    finally:
        os.close(opened)
