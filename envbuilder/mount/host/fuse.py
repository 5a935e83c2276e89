"""The /dev/fuse protocol for one flat directory of read-only files, spoken directly.

Source: linux/fuse.h, protocol 7.31 to 7.45; lazy_start.md 5.2. No library between: none of the
Python bindings hands the descriptor over, notifies, or answers from another thread. The server has
no state that a request refers to (file handles are 0, node ids are positions), so a new process
can take the descriptor over in the middle of anything.

Threading: any number of threads call ``serve``; ``read_now`` is called from them and from whatever
thread calls back from ``when_ready``. A thread that answers cached reads never waits for the network.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

_log = logging.getLogger(__name__)

# Opcodes. FORGET and BATCH_FORGET have no reply; INTERRUPT is answered ENOSYS, which stops them: an
# interrupted READ of EROFS would be EIO for a program that merely got a signal.
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _DESTROY = 25, 26, 27, 28, 29, 34, 38
_BATCH_FORGET = 42

_IN = struct.Struct("<IIQQIIII")  # fuse_in_header
_OUT = struct.Struct("<IiQ")  # fuse_out_header
_READ_IN = struct.Struct("<QQI")  # the first fields of fuse_read_in: fh, offset, size
_INIT_IN = struct.Struct("<IIII")  # major, minor, max_readahead, flags; then flags2
_INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")  # fuse_init_out, 64 bytes; the last field is max_stack_depth
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")  # fuse_attr
_ENTRY = struct.Struct("<QQQQII")  # fuse_entry_out before its attr
_ATTR_HEAD = struct.Struct("<QII")
_OPEN_OUT = struct.Struct("<QII")
_DIRENT = struct.Struct("<QQII")
_STATFS_OUT = struct.Struct("<QQQQQIIII24x")
_STORE_OUT = struct.Struct("<QQI4x")  # fuse_notify_store_out: node, offset, size

# INIT flags we want: ASYNC_READ, PARALLEL_DIROPS, MAX_PAGES, INIT_EXT; HAS_RESEND is bit 39.
_WANTED = 1 << 0 | 1 << 18 | 1 << 22 | 1 << 30 | 1 << 39
#: Reads in flight before the kernel throttles read-ahead; its own 12 and 9 do (lazy_start.md 5.2).
_MAX_BACKGROUND, _CONGESTION = 64, 48
#: Bytes that FUSE reads ahead of EROFS, all that the kernel offers: a READ costs us more than the bytes of it.
#: docs/decisions/0002-reads-ahead.md has the numbers.
READ_AHEAD = 128 << 10
#: The same where reads are foreseen, or recorded to be: a page, as what EROFS did not ask for is in no trace.
#: Of larger requests the kernel makes one READ all the same. docs/decisions/0007-start-up-traces.md.
NO_READ_AHEAD = 4096
#: The largest READ: 256 pages, the default of fs.fuse.max_pages.
_MAX_PAGES = 256
_MAX_READ = _MAX_PAGES * 4096
#: Requests are small (we take no writes); the kernel insists on 8 KiB (FUSE_MIN_READ_BUFFER).
_REQUEST_SIZE = 8192
#: Names and attributes never change while mounted: seconds until the kernel asks again (a year).
_VALID_S = 365 * 24 * 3600
_KEEP_CACHE = 2
_ROOT, _FIRST = 1, 2
#: Times that a read is planned again when what was fetched has been dropped before it was read.
_ATTEMPTS = 4
_NOTIFY_STORE, _NOTIFY_RESEND = 4, 7


#: Bytes of a fuse_entry_out with its attributes.
ENTRY_SIZE = _ENTRY.size + _ATTR.size
#: File type in an EROFS directory -> in a fuse_dirent (dirent.h).
_DIRENT_TYPES = (0, 8, 4, 2, 6, 1, 12, 10)
_REGULAR = 1

#: Gets number of the file, offset and size of a read.
Observer = Callable[[int, int, int], None]


class ServedFile(Protocol):
    """One file of the directory: bytes that may not be here yet."""

    @property
    def size(self) -> int: ...

    def read_now(self, offset: int, into: memoryview) -> bool:
        """Fill ``into`` from local data; False, at once, when some of it is not here."""

    def when_ready(self, offset: int, size: int, done: Callable[[OSError | None], None]) -> None:
        """Get these bytes and call ``done``, from any thread, with the error if it did not work."""


class FuseServer:
    """Answers for ``files``, named "0", "1", ... in the root directory.

    observe: told of every read before it is answered: number of the file, offset and size in bytes.
    ready: reads wait until it is set; names are answered before. wanted: INIT flags that are taken when offered.
    read_ahead: bytes that the kernel reads ahead at the most, of each file.
    """

    wanted: ClassVar[int] = _WANTED

    def __init__(
        self,
        device: int,
        files: Sequence[ServedFile],
        *,
        observe: Observer | None = None,
        ready: threading.Event | None = None,
        read_ahead: int = READ_AHEAD,
    ) -> None:
        self._device, self._files, self._observe, self._ready = device, tuple(files), observe, ready
        self._read_ahead = read_ahead

    def serve(self) -> None:
        """Answer requests until the file system is unmounted or its connection aborted."""
        request = bytearray(_REQUEST_SIZE)
        reply = memoryview(bytearray(_OUT.size + _MAX_READ))
        view = memoryview(request)
        while True:
            try:
                size = os.readv(self._device, [request])
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ECONNABORTED):  # unmounted; aborted (Linux, fuse_dev_do_read)
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # ENOENT: it was interrupted meanwhile
                    continue
                raise
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            if opcode in (_FORGET, _BATCH_FORGET):
                continue
            try:
                if opcode == _READ:
                    self._read(unique, node, view[_IN.size : size], reply)
                else:
                    self._send(unique, self._answer(opcode, node, view[_IN.size : size]))
            except OSError as error:
                self._send_error(unique, error.errno or errno.EIO)
            except Exception:  # noqa: BLE001 - the loop of a server: one bad request must not end it
                _log.exception("request %d failed", opcode)
                self._send_error(unique, errno.EIO)

    def _read(self, unique: int, node: int, body: memoryview, reply: memoryview) -> None:
        if self._ready is not None:
            self._ready.wait()
        file = self._file(node)
        _, offset, size = _READ_IN.unpack_from(body)
        # A READ is answered in full or with an error: newer kernels zero-fill what a short one leaves out.
        size = max(0, min(size, file.size - offset, _MAX_READ))
        if self._observe is not None and size:
            self._observe(node - _FIRST, offset, size)
        if size == 0 or file.read_now(offset, reply[_OUT.size : _OUT.size + size]):
            _OUT.pack_into(reply, 0, _OUT.size + size, 0, unique)
            self._write(reply[: _OUT.size + size])
            return
        self._read_later(unique, file, offset, size, _ATTEMPTS)

    def _read_later(self, unique: int, file: ServedFile, offset: int, size: int, attempts: int) -> None:
        def done(error: OSError | None) -> None:
            try:
                buffer = memoryview(bytearray(_OUT.size + size))
                if error is None and file.read_now(offset, buffer[_OUT.size :]):
                    _OUT.pack_into(buffer, 0, len(buffer), 0, unique)
                    self._write(buffer)
                elif error is None and attempts > 1:
                    self._read_later(unique, file, offset, size, attempts - 1)
                else:
                    self._send_error(unique, (error.errno if error else 0) or errno.EIO)
            except Exception as problem:  # noqa: BLE001 - the reader gets EIO, the log the reason
                _log.exception("read at %d failed", offset)
                self._send_error(unique, problem.errno or errno.EIO if isinstance(problem, OSError) else errno.EIO)

        file.when_ready(offset, size, done)

    def _file(self, node: int) -> ServedFile:
        if not _FIRST <= node < _FIRST + len(self._files):
            raise OSError(errno.ENOENT, "no such node")
        return self._files[node - _FIRST]

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes:
        if opcode == _INIT:
            return self._init(body)
        if opcode == _LOOKUP:
            name = bytes(body).partition(b"\0")[0]
            found = int(name) + _FIRST if name.isdigit() and len(name) < 6 else 0
            self._file(found)
            return entry(found, self._attr(found))
        if opcode == _GETATTR:
            return _ATTR_HEAD.pack(_VALID_S, 0, 0) + self._attr(node)
        if opcode in (_OPEN, _OPENDIR):
            return _OPEN_OUT.pack(0, _KEEP_CACHE, 0)
        if opcode == _READDIR:
            return self._listing(*_READ_IN.unpack_from(body)[1:])
        if opcode == _STATFS:
            return _STATFS_OUT.pack(0, 0, 0, len(self._files), 0, 4096, 255, 4096, 0)
        if opcode in (_RELEASE, _RELEASEDIR, _FLUSH, _ACCESS, _DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "not a request of a read-only directory")

    def _init(self, body: memoryview) -> bytes:
        major, minor, read_ahead, low = _INIT_IN.unpack_from(body)
        offered = low | (int.from_bytes(body[16:20], "little") << 32 if low & 1 << 30 else 0)
        flags = offered & self.wanted
        return _INIT_OUT.pack(
            *(7, min(minor, 45) if major == 7 else 31, min(read_ahead, self._read_ahead), flags & 0xFFFFFFFF),
            *(_MAX_BACKGROUND, _CONGESTION, 4096, 1, _MAX_PAGES, 0, flags >> 32, 0),
        )

    def _attr(self, node: int) -> bytes:
        size = self._file(node).size if node != _ROOT else 0
        mode = 0o40555 if node == _ROOT else 0o100444
        return attr(node, size=size, mode=mode)

    def _listing(self, start: int, size: int) -> bytes:
        parts, used = [], 0
        for position in range(start, len(self._files)):
            part = dirent(position + _FIRST, position + 1, str(position).encode(), _REGULAR)
            if used + len(part) > size:
                break
            parts.append(part)
            used += len(part)
        return b"".join(parts)

    def _send(self, unique: int, body: bytes) -> None:
        self._write(_OUT.pack(_OUT.size + len(body), 0, unique) + body)

    def _send_error(self, unique: int, number: int) -> None:
        self._write(_OUT.pack(_OUT.size, -number, unique))

    def _write(self, reply: bytes | memoryview) -> None:
        try:
            os.write(self._device, reply)
        except OSError as error:
            # ENOENT: the reader was killed; ENODEV: unmounted meanwhile. Nobody is there to be told.
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise


def entry(node: int, attributes: bytes) -> bytes:
    """A fuse_entry_out that is valid for a year."""
    return _ENTRY.pack(node, 0, _VALID_S, _VALID_S, 0, 0) + attributes


def attr(
    node: int,
    *,
    size: int,
    mode: int,
    links: int = 1,
    uid: int = 0,
    gid: int = 0,
    rdev: int = 0,
    mtime_s: int = 1,
) -> bytes:
    """A fuse_attr; the three times are one."""
    times = (mtime_s, mtime_s, mtime_s, 0, 0, 0)
    return _ATTR.pack(node, size, (size + 511) // 512, *times, mode, links, uid, gid, rdev, 4096, 0)


def dirent(node: int, following: int, name: bytes, kind: int) -> bytes:
    """A fuse_dirent; ``following``: the offset that goes on behind it. ``kind``: as in an EROFS directory."""
    part = _DIRENT.pack(node, following, len(name), _DIRENT_TYPES[kind]) + name
    return part + bytes(-len(part) % 8)


def read_in(body: memoryview) -> tuple[int, int]:
    """Offset and size of a READ or READDIR."""
    _, offset, size = _READ_IN.unpack_from(body)
    return offset, size


def push(device: int, number: int, offset: int, data: Sequence[memoryview]) -> bool:
    """Put ``data``, one behind the other, into the kernel's cache of file ``number``; False: it knows no such file.

    Blocks, so that no signal is heard either, while one of these pages is being read and not yet answered.

    Raises:
        OSError: unmounted, or the kernel takes none.
    """
    size = sum(map(len, data))
    head = _OUT.pack(_OUT.size + _STORE_OUT.size + size, _NOTIFY_STORE, 0)
    try:
        os.writev(device, [head, _STORE_OUT.pack(number + _FIRST, offset, size), *data])
    except FileNotFoundError:
        return False
    return True


def resend(device: int) -> None:
    """Ask the kernel to hand out again what a dead server had read and not answered (Linux 6.9).

    Raises:
        OSError: the kernel is older.
    """
    os.write(device, _OUT.pack(_OUT.size, _NOTIFY_RESEND, 0))
