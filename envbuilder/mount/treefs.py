"""The FUSE file system that shows an image file by file, for hosts whose kernel does not mount EROFS for us.

It answers from EROFS metadata (erofstree.py) and the same lazy blobs that EROFS would read: the two ways show one tree.
Names cost requests here, so that everything is cached for a year: the tree never changes. Node ids are positions in the
metadata: a new worker takes over in the middle of anything, as with ``FuseServer``. lazy_start.md 5.6.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Sequence
from threading import Event, Lock

from envbuilder.errors import IntegrityError
from envbuilder.mount.erofstree import ErofsTree, Extent, TreeNode
from envbuilder.mount.host import fuse
from envbuilder.mount.host.fuse import FuseServer, ServedFile

_log = logging.getLogger(__name__)

_LOOKUP, _GETATTR, _READLINK, _OPEN, _GETXATTR, _LISTXATTR = 1, 3, 5, 14, 22, 23
_OPENDIR, _READDIR, _READDIRPLUS = 27, 28, 44
_GETXATTR_IN = struct.Struct("<II")
#: INIT: DO_READDIRPLUS, READDIRPLUS_AUTO, NO_OPEN_SUPPORT, CACHE_SYMLINKS, NO_OPENDIR_SUPPORT.
_WANTED = 1 << 13 | 1 << 14 | 1 << 17 | 1 << 23 | 1 << 24
_ROOT, _SHIFT = 1, 2


class TreeServer(FuseServer):
    """Answers for the tree in ``tree``, whose devices are ``blobs``."""

    wanted = FuseServer.wanted | _WANTED

    def __init__(
        self, device: int, tree: ErofsTree, blobs: Sequence[ServedFile], *, ready: Event | None = None
    ) -> None:
        super().__init__(device, blobs, ready=ready)
        self._tree, self._blobs = tree, tuple(blobs)

    def _nid(self, node: int) -> int:
        return self._tree.root if node == _ROOT else node - _SHIFT

    def _id(self, nid: int) -> int:
        return _ROOT if nid == self._tree.root else nid + _SHIFT

    def _file(self, node: int) -> ServedFile:
        nid = self._nid(node)
        return _FileView(self._tree, self._tree.node(nid), self._tree.extents(nid), self._blobs)

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes:
        try:
            return self._asked(opcode, node, body)
        except IntegrityError as error:
            _log.error("%s", error)
            raise OSError(errno.EIO, str(error)) from error

    def _asked(self, opcode: int, node: int, body: memoryview) -> bytes:
        nid = self._nid(node)
        if opcode == _LOOKUP:
            found = self._tree.names(nid).get(bytes(body).partition(b"\0")[0])
            # Node 0: it is not there, and need not be asked for again.
            return self._entry(found[0]) if found else fuse.entry(0, b"").ljust(fuse.ENTRY_SIZE, b"\0")
        if opcode in (_OPEN, _OPENDIR):
            # With NO_OPEN_SUPPORT the kernel never asks again: files have no state of ours.
            raise OSError(errno.ENOSYS, "nothing to open")
        if opcode == _READLINK:
            return self._tree.target(nid)
        if opcode == _GETXATTR:
            size, _ = _GETXATTR_IN.unpack_from(body)
            name = bytes(body[_GETXATTR_IN.size :]).partition(b"\0")[0]
            value = dict(self._tree.xattrs(nid)).get(name)
            if value is None:
                raise OSError(errno.ENODATA, "no such attribute")
            return _sized(value, size)
        if opcode == _LISTXATTR:
            names = b"".join(name + b"\0" for name, _ in self._tree.xattrs(nid))
            return _sized(names, _GETXATTR_IN.unpack_from(body)[0])
        if opcode == _READDIRPLUS:
            return self._entries(nid, *fuse.read_in(body), plus=True)
        if opcode == _READDIR:
            return self._entries(nid, *fuse.read_in(body), plus=False)
        return super()._answer(opcode, node, body)

    def _attr(self, node: int) -> bytes:
        found = self._tree.node(self._nid(node))
        return fuse.attr(
            node,
            size=found.size,
            mode=found.mode,
            links=found.links,
            uid=found.uid,
            gid=found.gid,
            rdev=found.rdev,
            mtime_s=found.mtime_s,
        )

    def _entry(self, nid: int) -> bytes:
        return fuse.entry(self._id(nid), self._attr(self._id(nid)))

    def _entries(self, nid: int, start: int, size: int, *, plus: bool) -> bytes:
        parts, used = [], 0
        for position, (name, (child, kind)) in enumerate(list(self._tree.names(nid).items())[start:], start):
            part = fuse.dirent(child + _SHIFT, position + 1, name, kind)
            if plus:
                # The kernel takes no node for the directory itself and its parent.
                dots = name in (b".", b"..")
                part = (bytes(fuse.ENTRY_SIZE) if dots else self._entry(child)) + part
            if used + len(part) > size:
                break
            parts.append(part)
            used += len(part)
        return b"".join(parts)


def _sized(value: bytes, size: int) -> bytes:
    """``value``, or how many bytes it has if nobody has room for it yet."""
    if not size:
        return _GETXATTR_IN.pack(len(value), 0)
    if len(value) > size:
        raise OSError(errno.ERANGE, "no room")
    return value


class _FileView:
    """A file as parts of devices: a ``ServedFile``."""

    def __init__(self, tree: ErofsTree, node: TreeNode, extents: Sequence[Extent], blobs: Sequence[ServedFile]) -> None:
        self._tree, self._extents, self._blobs, self.size = tree, extents, blobs, node.size

    def _parts(self, offset: int, size: int) -> list[tuple[int, int, int, int]]:
        """Device, offset in it, place in the read and bytes of each part."""
        found = []
        for extent in self._extents:
            start, stop = max(offset, extent.at), min(offset + size, extent.at + extent.size)
            if start < stop:
                found.append((extent.device, extent.offset + start - extent.at, start - offset, stop - start))
        return found

    def read_now(self, offset: int, into: memoryview) -> bool:
        """See ``fuse.ServedFile``."""
        into[:] = bytes(len(into))
        for device, where, place, size in self._parts(offset, len(into)):
            if device < 0:
                into[place : place + size] = self._tree.image[where : where + size]
            elif not self._blobs[device].read_now(where, into[place : place + size]):
                return False
        return True

    def when_ready(self, offset: int, size: int, done: Callable[[OSError | None], None]) -> None:
        """See ``fuse.ServedFile``."""
        parts = [part for part in self._parts(offset, size) if part[0] >= 0]
        gathered = _Gathered(len(parts), done)
        for device, where, _, count in parts:
            self._blobs[device].when_ready(where, count, gathered.one)
        if not parts:
            done(None)


class _Gathered:
    """Calls ``done`` once when ``count`` parts are here, or with the first error."""

    def __init__(self, count: int, done: Callable[[OSError | None], None]) -> None:
        self._left, self._done, self._lock = count, done, Lock()

    def one(self, error: OSError | None) -> None:
        """One part is here, or is not to be had."""
        with self._lock:
            told = self._left <= 0
            self._left = 0 if error else self._left - 1
            ends = not told and self._left == 0
        if ends:
            self._done(error)
