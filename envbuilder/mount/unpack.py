"""An image unpacked into a directory: the last resort where EROFS or FUSE are missing, and for foreign images.

Layers are hostile archives: every path goes through ``entry_path`` and is opened inside the tree
(inroot.py), the last component never through a link. OCI image-spec 1.1 layer.md, "Whiteouts".
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import io
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, Readable
from envbuilder.errors import HostError, IntegrityError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.inroot import make_directory, open_directory
from envbuilder.oci import media_types
from envbuilder.paths import entry_path
from envbuilder.store.target import Target

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_XATTR = "SCHILY.xattr."
_TARS = frozenset(
    {
        media_types.OCI_LAYER_TAR,
        media_types.OCI_LAYER_TAR_GZIP,
        media_types.OCI_LAYER_TAR_ZSTD,
        media_types.DOCKER_LAYER_TAR,
        media_types.DOCKER_LAYER_TAR_GZIP,
        media_types.DOCKER_LAYER_TAR_ZSTD,
    }
)
#: First bytes: RFC 1952 2.3.1; RFC 8878 3.1.1 (a frame) and 3.1.2 (a frame to pass over, of 16 kinds).
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE_FIRST, _SKIPPABLE_REST = bytes(range(0x50, 0x60)), b"\x2a\x4d\x18"
_MAGIC_SIZE = 4


class BadLayer(IntegrityError):
    """A layer is not the tar that its image promises, or one that cannot be unpacked safely."""


class NotUnpacked(HostError):
    """The disk refused what a layer holds."""

    hint = "Free disk space, or choose a cache folder on an ordinary Linux file system."


def unpacked(image: OpenImage, source: Target, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """The root file system of ``image`` below ``folder``, unpacked now unless it is there already.

    Two processes that ask at once unpack once; one that is killed leaves nothing that looks finished.

    Raises:
        BadLayer, DigestMismatch, NotUnpacked, UnavailableError: see the leaf.
    """
    done = folder / image.descriptor.digest.hex
    if done.is_dir():
        return done
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _only_one(folder / f"{image.descriptor.digest.hex}.lock"):
            if done.is_dir():
                return done
            for leftover in folder.glob(f".{done.name}.*"):
                shutil.rmtree(leftover, ignore_errors=True)
            temporary = folder / f".{done.name}.{secrets.token_hex(4)}"
            temporary.mkdir()
            try:
                temporary.chmod(0o755)  # whatever our umask is
                total, moved = sum(layer.size for layer in image.manifest.layers), 0
                for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
                    _unpack_layer(source, layer, diff_id, temporary)
                    moved += layer.size
                    progress(moved, total)
                temporary.rename(done)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    except OSError as error:
        raise NotUnpacked(f"{image.root.digest}: unpacking into {folder}: {error}") from error
    return done


def _unpack_layer(source: Target, layer: Descriptor, diff_id: Digest, directory: Path) -> None:
    name = f"{source.name}: layer {layer.digest}"
    with source.fetch(layer) as stored, _decompressed(layer, stored, name) as plain:
        hashing = _Hashing(plain)
        try:
            unpack_tar(hashing, directory, source=name)
            while hashing.read(BLOCK_SIZE):
                pass
        except (tarfile.TarError, zstandard.ZstdError, gzip.BadGzipFile, EOFError) as error:
            raise BadLayer(f"{name}: {error}") from error
    if hashing.digest() != diff_id:
        raise BadLayer(f"{name}: want diff_id {diff_id}, got {hashing.digest()}")


def unpack_tar(stream: Readable, directory: Path, *, source: str) -> None:
    """Lay the tar in ``stream`` over what is in ``directory``, whiteouts applied.

    Raises:
        UnsafePath, BadLayer: a path or a link leads outside, or what is there is in the way.
    """
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own: set[str] = set()  # made by this layer: its own whiteouts do not touch them
        late: list[tuple[str, tarfile.TarInfo]] = []
        with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|", encoding="utf-8") as tar:
            for info in tar:
                if info.name.strip("/") in ("", "."):
                    os.chown(root, info.uid, info.gid)
                    os.chmod(root, info.mode & 0o7777)  # noqa: PTH101 - a descriptor
                    continue
                path = entry_path(info.name, source=source)
                try:
                    _apply(root, path, info, tar, own)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                        raise
                    raise BadLayer(f"{source}: {path}: {error.strerror}") from error
                if info.isdir():
                    late.append((path, info))
        # Writing into a directory changed its times; what was made last is nested deepest.
        for path, info in reversed(late):
            with suppress(OSError), _directory(root, path) as opened:
                os.utime(f"/proc/self/fd/{opened}", (info.mtime, info.mtime))
    finally:
        os.close(root)


def _apply(root: int, path: str, info: tarfile.TarInfo, tar: tarfile.TarFile, own: set[str]) -> None:
    above, _, name = path.rpartition("/")
    parent = make_directory(root, above)
    try:
        if name == _OPAQUE:
            for child in os.listdir(f"/proc/self/fd/{parent}"):  # noqa: PTH208 - a descriptor
                if f"{above}/{child}".lstrip("/") not in own:
                    _remove(parent, child)
            return
        if name.startswith(_WHITEOUT):
            hidden = name.removeprefix(_WHITEOUT)
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
    os.chown(name, info.uid, info.gid, dir_fd=parent, follow_symlinks=False)
    if not info.issym():
        # The name is ours since a moment and no link; chmod after chown, which clears setuid.
        os.chmod(name, info.mode & 0o7777, dir_fd=parent)
    for key, text in info.pax_headers.items():
        if key.startswith(_XATTR):
            value = text.encode("utf-8", "surrogateescape")
            where = f"/proc/self/fd/{parent}/{name}"
            os.setxattr(where, key.removeprefix(_XATTR), value, follow_symlinks=False)
    os.utime(name, (info.mtime, info.mtime), dir_fd=parent, follow_symlinks=False)


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


@contextmanager
def _only_one(lock_file: Path) -> Iterator[None]:
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _decompressed(layer: Descriptor, stored: BinaryIO, name: str) -> Iterator[Readable]:
    """The tar of a layer. How it is compressed is seen in its bytes, as container engines do.

    Docker's archives have no media types: crane calls each of their layers gzip, buildpacks push plain tars under
    that name. The diff_id decides in the end whether these are the bytes that the image means.
    """
    if layer.media_type not in _TARS:
        raise BadLayer(f"{name}: want a tar, gzip or zstd layer, got {layer.media_type[:100]!r}")
    first = b""
    while len(first) < _MAGIC_SIZE and (more := stored.read(_MAGIC_SIZE - len(first))):
        first += more
    whole = _Rewound(first, stored)
    if first.startswith(_GZIP_MAGIC):
        with gzip.GzipFile(fileobj=cast("BinaryIO", whole)) as unzipped:
            yield cast("Readable", io.BufferedReader(unzipped, BLOCK_SIZE))
    elif first == _ZSTD_MAGIC or (first[:1] in _SKIPPABLE_FIRST and first[1:] == _SKIPPABLE_REST):
        with zstandard.ZstdDecompressor().stream_reader(cast("BinaryIO", whole), read_across_frames=True) as stream:
            yield stream
    else:
        yield whole


class _Rewound:
    """``first``, which was read already, then the rest of ``inner``."""

    def __init__(self, first: bytes, inner: Readable) -> None:
        self._first, self._inner = first, inner

    def read(self, size: int = -1, /) -> bytes:
        if not self._first:
            return self._inner.read(size)
        if size < 0:
            data, self._first = self._first + self._inner.read(), b""
            return data
        data, self._first = self._first[:size], self._first[size:]
        return data


class _Hashing:
    """Passes bytes through and knows their sha256."""

    def __init__(self, inner: Readable) -> None:
        self._inner, self._hash = inner, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._inner.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())
