"""Read the tree in EROFS metadata of ours where the kernel cannot mount them: nothing is kept in memory but names.

Only what our writer makes (layer/erofs.py) is read: flat names and links, files as tables of chunks. Every address is
checked before it is used; what contradicts itself is a ``BadTree``. Format: layer/erofs_format.py.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from envbuilder.errors import IntegrityError
from envbuilder.layer import erofs_format as disk

_SUPER = struct.Struct("<IIIBBH")
_EPOCH_AT = disk.SUPER_OFFSET + 24
_COMPACT, _EXTENDED = struct.Struct("<HHHHIIIIHH4x"), struct.Struct("<HHHHQIIIIQII16x")
_MAGIC = 0xE0F5E1E2
_XATTR = struct.Struct("<BBH")
_PREFIXES = {
    1: "user.",
    2: "system.posix_acl_access",
    3: "system.posix_acl_default",
    4: "trusted.",
    6: "security.",
}
#: Directories whose names are remembered.
_KNOWN = 256
#: Bytes of a directory that is read: a million names.
_MAX_DIRECTORY = 64 << 20


class BadTree(IntegrityError):
    """EROFS metadata that our writer never makes."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One inode. rdev: as the kernel has it. where: of the image, what follows inode and attributes."""

    nid: int
    mode: int
    uid: int
    gid: int
    size: int
    links: int
    mtime_s: int
    unit: int
    layout: int
    xattrs: tuple[int, int]
    where: int

    @property
    def rdev(self) -> int:
        """Device number, of a device."""
        return self.unit if stat.S_ISCHR(self.mode) or stat.S_ISBLK(self.mode) else 0


@dataclass(frozen=True, slots=True)
class Extent:
    """``size`` bytes of a file from ``at`` on: at ``offset`` of device ``device``, from 0; -1 is the image itself."""

    at: int
    size: int
    device: int
    offset: int


class ErofsTree:
    """The tree in the file ``metadata``, whose digest was checked. Thread-safe."""

    def __init__(self, metadata: Path) -> None:
        """Raises BadTree: it is no EROFS. OSError: it cannot be read."""
        with metadata.open("rb") as file:
            self.image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._name = metadata.name
        try:
            magic, _, _, self._bits, _, self.root = _SUPER.unpack_from(self.image, disk.SUPER_OFFSET)
            self._epoch_s = struct.unpack_from("<Q", self.image, _EPOCH_AT)[0]
        except struct.error as error:
            raise BadTree(f"{metadata}: {error}") from error
        if magic != _MAGIC or not 9 <= self._bits <= 12:
            raise BadTree(f"{metadata}: not an EROFS image")
        self.node = lru_cache(maxsize=4096)(self._node)
        self.names = lru_cache(maxsize=_KNOWN)(self._names)
        self.extents = lru_cache(maxsize=4096)(self._extents)

    def _node(self, nid: int) -> TreeNode:
        """The inode ``nid``.

        Raises:
            BadTree: there is none.
        """
        at = nid * disk.SLOT
        try:
            form = struct.unpack_from("<H", self.image, at)[0]
            if form & 1:
                _, count, mode, _, size, unit, _, uid, gid, mtime_s, _, links = _EXTENDED.unpack_from(self.image, at)
                where = at + disk.EXTENDED_SIZE
            else:
                _, count, mode, links, size, _, unit, _, uid, gid = _COMPACT.unpack_from(self.image, at)
                mtime_s, where = self._epoch_s, at + disk.COMPACT_SIZE
        except struct.error as error:
            raise BadTree(f"{self._name}: inode {nid}: {error}") from error
        xattrs = (where, 12 + (count - 1) * 4 if count else 0)
        node = TreeNode(nid, mode, uid, gid, size, links, mtime_s, unit, form >> 1 & 7, xattrs, where + xattrs[1])
        if node.layout not in (disk.FLAT_PLAIN, disk.FLAT_INLINE, disk.CHUNK_BASED) or node.where > len(self.image):
            raise BadTree(f"{self._name}: inode {nid} of layout {node.layout}")
        return node

    def _names(self, nid: int) -> Mapping[bytes, tuple[int, int]]:
        """Name -> (inode, file type) of a directory, in its order; ``.`` and ``..`` too.

        Raises:
            NotADirectoryError: it is none. BadTree: it is damaged.
        """
        node = self.node(nid)
        if not stat.S_ISDIR(node.mode):
            raise NotADirectoryError(20, "not a directory")
        data, block = self._own(node, _MAX_DIRECTORY), 1 << self._bits
        found: dict[bytes, tuple[int, int]] = {}
        for start in range(0, len(data), block):
            part = data[start : start + block]
            found.update(self._block(part, nid))
        return found

    def _block(self, part: bytes, nid: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
        try:
            first = disk.DIRENT.unpack_from(part)[1]
            entries = [disk.DIRENT.unpack_from(part, at) for at in range(0, first, disk.DIRENT.size)]
        except struct.error as error:
            raise BadTree(f"{self._name}: directory {nid}: {error}") from error
        ends = [offset for _, offset, _, _ in entries[1:]] + [len(part)]
        for (child, offset, kind, _), end in zip(entries, ends, strict=True):
            yield part[offset:end].rstrip(b"\0"), (child, kind)

    def target(self, nid: int) -> bytes:
        """Where a symbolic link points.

        Raises:
            BadTree: it is no link.
        """
        node = self.node(nid)
        if not stat.S_ISLNK(node.mode):
            raise BadTree(f"{self._name}: inode {nid} is no link")
        return self._own(node, 1 << 16)

    def xattrs(self, nid: int) -> Iterator[tuple[bytes, bytes]]:
        """Full names and values of extended attributes."""
        where, size = self.node(nid).xattrs
        at, end = where + 12, where + size
        while at + _XATTR.size <= min(end, len(self.image)):
            length, index, value_size = _XATTR.unpack_from(self.image, at)
            name = self.image[at + _XATTR.size : at + _XATTR.size + length]
            value = at + _XATTR.size + length
            yield _PREFIXES.get(index, "").encode() + name, self.image[value : value + value_size]
            at += -(-(_XATTR.size + length + value_size) // 4) * 4

    def _own(self, node: TreeNode, most: int) -> bytes:
        """Bytes that the image itself holds for an inode."""
        block = 1 << self._bits
        whole = node.size if node.layout == disk.FLAT_PLAIN else node.size // block * block
        start = node.unit << self._bits
        data = self.image[start : start + whole] if whole else b""
        data += self.image[node.where : node.where + node.size - whole]
        if node.size > most or len(data) != node.size:
            raise BadTree(f"{self._name}: inode {node.nid}: {node.size} bytes, {len(data)} of them here")
        return data

    def _extents(self, nid: int) -> tuple[Extent, ...]:
        """Where the data of a regular file lie; what is missing between is zeros.

        Raises:
            BadTree: it is no file, or damaged.
        """
        node = self.node(nid)
        if not node.size:
            return ()
        if not stat.S_ISREG(node.mode) or node.layout != disk.CHUNK_BASED:
            raise BadTree(f"{self._name}: inode {nid} of mode {node.mode:o} has no chunks")
        size = 1 << (node.unit & 0x1F) + self._bits
        table = -(-node.where // disk.CHUNK.size) * disk.CHUNK.size
        found: list[Extent] = []
        try:
            for number in range(-(-node.size // size)):
                _, device, start = disk.CHUNK.unpack_from(self.image, table + number * disk.CHUNK.size)
                at = number * size
                extent = Extent(at, min(size, node.size - at), device - 1, start << self._bits)
                last = found[-1] if found else None
                if last and last.device == extent.device and last.offset + last.size == extent.offset:
                    found[-1] = Extent(last.at, last.size + extent.size, last.device, last.offset)
                elif start != disk.NO_BLOCK:
                    found.append(extent)
        except struct.error as error:
            raise BadTree(f"{self._name}: inode {nid}: {error}") from error
        return tuple(found)
