"""Files that appear whole or not at all, whoever is killed and whatever disk fills up.

A writer holds an flock on its temporary file for as long as it lives. So a leftover is a
temporary file whose lock is free: no age to guess, and process ids of other containers
don't mislead us.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import final

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, DigestMismatch, Readable, read_into
from envbuilder.errors import HostError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
#: A flag of pwritev2 (linux/fs.h, Linux 6.14): start writing to the disk at once, and leave the page cache when done.
_RWF_DONTCACHE = 0x80
#: Errors of a kernel, or of a file system, that does not know it.
_UNKNOWN_FLAG = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
#: Bytes after which the disk is set to work, so that ``publish`` has little to wait for: 0.2 s less for 500 MB.
_SPAN = 8 << 20
#: Bytes whose place is taken at a time.
_PLACE = 64 << 20
#: Blocks of memory that nobody reads into; as many as ever were in use at once.
_blocks: list[memoryview] = []


class DiskFull(HostError):
    """The file system of a store has no room, or the user's quota is used up."""


class NotWritable(HostError):
    """The store is on a read-only file system, or belongs to another user."""


class StorageFailed(HostError):
    """The file system of a store gave an error that we cannot explain further."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about ``path`` into the HostError that says what to do.

    Raises:
        DiskFull, NotWritable, StorageFailed: in place of the OSError.
    """
    try:
        yield
    except OSError as error:
        text = f"{path}: {error.strerror or error}"
        if error.errno in _FULL:
            raise DiskFull(text, hint=f"Free space on the file system of {path}, or use another store.") from error
        if error.errno in _REFUSED:
            raise NotWritable(text, hint=f"Make {path} writable, or use another store.") from error
        raise StorageFailed(text, hint=f"Look into the state of the file system of {path}.") from error


@final
class PendingFile:
    """A file being written in ``incoming``; ``publish`` lets it appear, ``discard`` undoes it.

    passing: bytes of a file that comes from elsewhere and that nobody is about to read: their place on the disk is
        taken ahead, and they need not stay in the page cache, where the system can help it. 0: it is none.
    Not thread-safe. A context manager: leaving it discards what was not published.
    """

    def __init__(self, incoming: Path, *, passing: int = 0) -> None:
        self._incoming, self._passing, self._size = incoming, passing > 0, passing
        self._fd = -1
        self._written = self._begun = self._taken = 0
        with disk_errors(incoming):
            while self._fd < 0:
                self._path = incoming / secrets.token_hex(16)
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                fcntl.flock(fd, fcntl.LOCK_EX)
                # Between open and flock a cleaner may have taken the file for a leftover: then it has no name.
                if os.fstat(fd).st_nlink:
                    self._fd = fd
                else:
                    os.close(fd)

    @property
    def fileno(self) -> int:
        """The descriptor, open for reading and writing."""
        return self._fd

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append all of ``data``; its length."""
        rest = memoryview(data).cast("B")
        with disk_errors(self._incoming):
            if self._written + len(rest) > self._taken and self._taken < self._size:
                self._take_place()
            while rest:
                rest = rest[self._write_some(rest) :]
            self._written += len(data)
            if self._written - self._begun >= _SPAN and not self._passing:
                # Of what is not on the disk yet the system begins to write all and forgets nothing (posix_fadvise(2)).
                os.posix_fadvise(self._fd, self._begun, self._written - self._begun, os.POSIX_FADV_DONTNEED)
                self._begun = self._written
        return len(data)

    def write_all_of(self, stream: Readable) -> None:
        """Append what ``stream`` gives, to its end."""
        with _lent_block() as block:
            while got := read_into(stream, block):
                self.write(block[:got])

    def _take_place(self) -> None:
        """Let the file system find a place for the next bytes at once, which it else does block by block.

        Not for all at once: a size is what somebody said.
        """
        if not self._taken and not _can_allocate(self._fd):
            self._size = 0
            return
        span = min(self._size - self._taken, _PLACE)
        os.posix_fallocate(self._fd, self._taken, span)
        self._taken += span

    def _write_some(self, data: memoryview) -> int:
        if self._passing:
            try:
                # At -1: where the file's own position is, which moves (pwritev2(2)).
                return os.pwritev(self._fd, [data], -1, _RWF_DONTCACHE)
            except NotImplementedError:  # a Python that was built for a C library without pwritev2
                self._passing = False
            except OSError as error:
                if error.errno not in _UNKNOWN_FLAG:
                    raise
                self._passing = False
        return os.write(self._fd, data)

    def publish(self, path: Path) -> None:
        """Let the file appear as ``path``, on disk for good; a file of that name is replaced."""
        with disk_errors(path):
            os.fsync(self._fd)
            self._path.rename(path)
            sync_directory(path.parent)
        self._close()

    def discard(self) -> None:
        """Forget the file; a no-op once it is published or discarded."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too
        os.close(fd)

    def __enter__(self) -> PendingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


@final
class BlobWriter:
    """Content of a digest yet unknown, streamed into a store: ``write``, then ``commit`` or ``abort``.

    A context manager: leaving it aborts what was not committed. Not thread-safe.
    """

    def __init__(self, pending: PendingFile, blobs: Path, source: str) -> None:
        self._pending, self._blobs, self._source = pending, blobs, source
        self._hash = hashlib.sha256()
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    @property
    def digest(self) -> Digest:
        """The digest of the bytes written so far."""
        return Digest("sha256:" + self._hash.copy().hexdigest())

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append all of ``data``; its length.

        Raises:
            DiskFull, StorageFailed: nothing stays behind after ``abort``.
        """
        self._hash.update(data)
        count = self._pending.write(data)
        self._size += count
        return count

    def commit(self, what: Descriptor) -> None:
        """Store what was written, as ``what``.

        Raises:
            DigestMismatch: it is not ``what``; nothing is stored.
        """
        if (self.size, self.digest) != (what.size, what.digest):
            self.abort()
            raise DigestMismatch(self._source, what.digest, what.size, self.digest, self.size)
        self._pending.publish(self._blobs / what.digest.hex)

    def abort(self) -> None:
        """Drop what was written; a no-op after ``commit``."""
        self._pending.discard()

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def write_whole(incoming: Path, path: Path, data: bytes) -> None:
    """Let ``path`` hold ``data``, at once and for good; ``incoming`` is on the same file system."""
    with PendingFile(incoming) as pending:
        pending.write(data)
        pending.publish(path)


def name_file(fd: int, path: Path) -> None:
    """Give the nameless file ``fd`` (O_TMPFILE) the name ``path``, which is free."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Only with a directory does Python call linkat, and only that follows the link in /proc.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def _can_allocate(fd: int) -> bool:
    """Whether the file system of an empty file can take a place for bytes to come.

    For one that cannot glibc would write into each block (posix_fallocate(3)): then there is data in the first.
    """
    try:
        os.posix_fallocate(fd, 0, 1)
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno in _FULL:
            raise
        return error.errno == errno.ENXIO
    finally:
        os.lseek(fd, 0, os.SEEK_SET)
    return False


@contextlib.contextmanager
def _lent_block() -> Iterator[memoryview]:
    """A block to read into; used again, since memory that is new for each blob costs more than a copy."""
    try:
        block = _blocks.pop()
    except IndexError:
        block = memoryview(bytearray(BLOCK_SIZE))
    try:
        yield block
    finally:
        _blocks.append(block)


def sync_directory(directory: Path) -> None:
    """Have the names in ``directory`` on disk, so that a rename outlives a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_leftovers(incoming: Path) -> int:
    """Remove what killed writers left in ``incoming``; how many files. Living writers keep theirs."""
    removed = 0
    with contextlib.suppress(OSError):  # a read-only store has none that we could remove
        for path in incoming.iterdir():
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    removed += 1
                finally:
                    os.close(fd)
    return removed


def is_locked(file: Path) -> bool:
    """Whether a process holds a lock on ``file`` (flock(2)); False when it is not there."""
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(opened)
    return False


@contextlib.contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold ``lock`` against other threads and processes; freed when the holder dies."""
    with disk_errors(lock):
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with disk_errors(lock):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def only_one(lock: Path, *, wait: bool = True, mode: int = 0o600) -> Iterator[int]:
    """Hold ``lock``, a file that cleaners may remove, open for reading and writing: whoever else asks waits.

    mode: of a new one; who may read it may hold it.

    Raises:
        BlockingIOError: another has it, and ``wait`` is false. OSError: it cannot be made.
    """
    fd = -1
    try:
        while fd < 0:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between open and flock a cleaner may have removed it: then others lock another.
            if not os.fstat(fd).st_nlink:
                os.close(fd)
                fd = -1
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)
