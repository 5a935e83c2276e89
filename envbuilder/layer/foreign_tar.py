"""The tar of a layer that others wrote: its entries, one by one, with bounds on all that tarfile reads into memory.

Layers are hostile archives: every path goes through ``entry_path``. Source: OCI image-spec 1.1 layer.md.
"""

from __future__ import annotations

import hashlib
import stat
import tarfile
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from envbuilder.digest import Digest, Readable
from envbuilder.errors import IntegrityError
from envbuilder.layer.tree import Placed
from envbuilder.paths import entry_path

#: Entries of one layer; the largest known images have 1.5 million.
MAX_ENTRIES = 4_000_000
_XATTR = "SCHILY.xattr."
#: Bytes of a tar header extension: names of PATH_MAX and extended attributes of 64 KiB each fit.
_MAX_EXTENSION = 1 << 20
_EXTENSIONS = frozenset(
    {
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
    }
)
#: Bytes that a layer may unpack to without a question, and times its stored size beyond that: the rule of
#: layer/zip.py, with more room for free: a layer may be a whole system.
_FREE_SIZE, _MAX_RATIO = 2 << 30, 100


class BadLayer(IntegrityError):
    """A layer is not the tar that its image promises, or one that cannot be unpacked safely."""


class BoundedMember(tarfile.TarInfo):
    """A member whose extension headers, which tarfile reads into memory, are bounded."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> BoundedMember:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENSIONS and info.size > _MAX_EXTENSION:
            raise BadLayer(f"a tar header extension of {info.size} bytes, want at most {_MAX_EXTENSION}")
        return info


class Hashing:
    """Passes at most ``limit`` bytes through and knows their sha256."""

    def __init__(self, inner: Readable, limit: int, source: str) -> None:
        self._inner, self._hash, self._limit, self._left, self._source = inner, hashlib.sha256(), limit, limit, source

    def read(self, size: int = -1, /) -> bytes:
        data = self._inner.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise BadLayer(f"{self._source}: unpacks to more than {self._limit} bytes, {_MAX_RATIO} times its own size")
        self._hash.update(data)
        return data

    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())


def most_bytes(stored: int) -> int:
    """Bytes that a layer of ``stored`` bytes may unpack to."""
    return max(_FREE_SIZE, _MAX_RATIO * stored)


def open_members(tar: BinaryIO, source: str) -> tarfile.TarFile:
    """The uncompressed ``tar``, a file, at its beginning.

    Raises:
        BadLayer: it is none.
    """
    try:
        return tarfile.open(fileobj=tar, mode="r:", encoding="utf-8", tarinfo=BoundedMember)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise BadLayer(f"{source}: {error}") from error


def each_member(tar: tarfile.TarFile, source: str) -> Iterator[tarfile.TarInfo]:
    """The members of ``tar``, which was opened with ``BoundedMember``.

    Raises:
        BadLayer: too many, or no tar.
    """
    try:
        for number, info in enumerate(tar):
            if number >= MAX_ENTRIES:
                raise BadLayer(f"{source}: more than {MAX_ENTRIES} entries")
            yield info
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise BadLayer(f"{source}: {error}") from error


def placed_of(info: tarfile.TarInfo, source: str) -> Placed:
    """A member as it lies in its tar; an empty path is the root. Of a hard link ``link`` is what it links to.

    Raises:
        UnsafePath: its name or its link climbs. BadLayer: it is nothing that a tree holds.
    """
    path = "" if info.name.strip("/") in ("", ".") else entry_path(info.name, source=source)
    if info.issparse() or (not path and not info.isdir()):
        raise BadLayer(
            f"{source}: {path[:200]!r}: only unpacking can show a sparse file, or a root that is no directory"
        )
    device = (info.devmajor, info.devminor) if info.ischr() or info.isblk() else (0, 0)
    if not 0 <= min(info.uid, info.gid) <= max(info.uid, info.gid) < 1 << 32:
        raise BadLayer(f"{source}: {path[:200]!r}: an owner that no kernel takes")
    return Placed(
        path=path,
        mode=_kind(info, source) | info.mode & 0o7777,
        uid=info.uid,
        gid=info.gid,
        size=info.size if info.isreg() else 0,
        link=entry_path(info.linkname, source=source) if info.islnk() else info.linkname if info.issym() else "",
        device=device,
        xattrs=_xattrs(info.pax_headers),
        offset=info.offset_data if info.isreg() and info.size else 0,
        mtime_s=min(max(0, int(info.mtime)), (1 << 32) - 1),
    )


def _kind(info: tarfile.TarInfo, source: str) -> int:
    if info.isreg() or info.islnk():
        return stat.S_IFREG
    for is_it, kind in (
        (info.isdir, stat.S_IFDIR),
        (info.issym, stat.S_IFLNK),
        (info.ischr, stat.S_IFCHR),
        (info.isblk, stat.S_IFBLK),
        (info.isfifo, stat.S_IFIFO),
    ):
        if is_it():
            return kind
    raise BadLayer(f"{source}: {info.name[:200]!r}: a tar entry of type {info.type!r}")


def _xattrs(headers: Mapping[str, str]) -> tuple[tuple[str, bytes], ...]:
    found = ((key, text) for key, text in headers.items() if key.startswith(_XATTR))
    return tuple(sorted((key.removeprefix(_XATTR), text.encode("utf-8", "surrogateescape")) for key, text in found))
