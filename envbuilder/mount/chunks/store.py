"""The chunks of layers that are on this node: a sparse file and a map for each blob, shared by all images.

    blobs/<sha256>/data               the uncompressed tar, holes where chunks are missing
    blobs/<sha256>/index              the chunk index as it lies in the blob, verified
    blobs/<sha256>/present.<boot id>  a byte a chunk: 1 = its data are in ``data`` (perhaps in memory only)
    blobs/<sha256>/pages.<boot id>    single pages of chunks that are not present (pagemap.py)
    blobs/<sha256>/durable            the same for chunks whose data are on disk
    blobs/<sha256>/complete           exists when every chunk is durable
    blobs/<sha256>/starts             where each chunk begins in ``data``: 8 bytes a chunk
    blobs/<sha256>/sums               CRC-32 of each durable chunk, 4 bytes a chunk: what ``fsck`` compares
    blobs/<sha256>/lock               flock held for moments, while the files are made or a map is written
    blobs/<sha256>/layer              the digest of the layer, for people

A blob's name is not its layer's digest, but of all that proves its bytes (``Device.stored_as``).

Who uses a blob holds a shared flock on its ``data``: what may be evicted is what can be locked exclusively
(eviction.py). When a blob was last used is the time of its ``lock``.

Data are durable before their mark is: ``present`` is believed only in the boot that wrote it, when
the page cache still has what it says; after a power cut ``durable`` alone counts. A byte a chunk,
written by pwrite, needs no lock between processes, and a full disk is an error, not a SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.errors import HostError, IntegrityError
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.chunks.pagemap import PageMap
from envbuilder.mount.chunks.whole import boot_id, hold, is_whole, present_file

#: Bytes of one write. A larger one gets larger folios of the page cache, from memory that lay free for long: where a
#: host takes such back, 1 MiB at a time cost 1.7 CPU seconds of a start of ``ai``, and this 0.1.
_PIECE = 256 << 10
#: The file that says which layer a blob is.
LAYER = "layer"
#: Times that a blob is opened again when it was evicted in the moment of opening.
_OPENINGS = 5


class StoreDamaged(IntegrityError):
    """A file of the chunk store does not have the size it must have."""

    hint = "Remove this blob's folder from the cache; it will be fetched again."


class Evicted(HostError):
    """A blob was evicted in the moment in which it was opened."""

    hint = "Start it again."


class StoreRefused(HostError):
    """The chunk store cannot be written."""

    hint = "Free disk space or choose another cache folder; check who owns it."


@dataclass(frozen=True, slots=True)
class ChunkStore:
    """The chunk store below ``directory``, which is made when it is first written."""

    directory: Path

    def blob(self, digest: Digest) -> Path:
        """The folder of one blob."""
        return self.directory / "blobs" / digest.hex

    def is_complete(self, digest: Digest, size: int) -> bool:
        """Whether every chunk of a blob is here, so that ``data`` is the whole tar of ``size`` bytes."""
        return is_whole(self.blob(digest), size)

    def flush(self, digest: Digest, size: int) -> None:
        """Make durable what is here of a blob; slow. A store that refuses costs only time after the next boot."""
        folder = self.blob(digest)
        with suppress(OSError, StoreDamaged):
            if not (folder / "complete").exists():
                blob = StoredBlob(folder, read_starts(folder), size)
                try:
                    blob.flush()
                finally:
                    blob.close()

    def open(self, digest: Digest, starts: Sequence[int], size: int, *, layer: Digest | None = None) -> StoredBlob:
        """The chunks of a blob that begin at ``starts`` (uncompressed bytes) and end at ``size``; ``layer``: it is of.

        Raises:
            StoreRefused: it cannot be written (disk full, read-only, another owner).
        """
        folder = self.blob(digest)
        for left in reversed(range(_OPENINGS)):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if layer and not (folder / LAYER).exists():
                    (folder / LAYER).write_text(str(layer))
                return StoredBlob(folder, starts, size)
            except Evicted:  # noqa: PERF203 - tried again
                if not left:
                    raise
            except OSError as error:
                raise StoreRefused(f"chunk store {folder}: {error.strerror}") from error
        raise AssertionError

    def hold(self, digest: Digest) -> int:
        """A descriptor that keeps a complete blob from being evicted until it is closed.

        Raises:
            OSError: it is not here.
        """
        return hold(self.blob(digest))

    def write_marks(self, digest: Digest, durable: bytes) -> None:
        """Replace what is believed to be durable of a blob; under its ``lock``."""
        _put(self.blob(digest) / "durable", durable)

    def read_index(self, digest: Digest) -> bytes | None:
        """The stored chunk index of a blob, to be verified by the caller."""
        try:
            return (self.blob(digest) / "index").read_bytes()
        except OSError:
            return None

    def write_index(self, digest: Digest, data: bytes) -> None:
        """Keep the chunk index of a blob; a store that cannot be written keeps nothing."""
        folder = self.blob(digest)
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _put(folder / "index", data)


class StoredBlob:
    """One blob in the store, open. Thread-safe; other processes may use the same blob."""

    def __init__(self, folder: Path, starts: Sequence[int], size: int) -> None:
        self.folder, self.size = folder, size
        self._starts, self._count = starts, len(starts)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not _is_at(self._lock, folder / "lock"):
                raise Evicted(f"{folder}: evicted while it was opened")
            os.utime(self._lock)
            self._data = self._open_data()
            fcntl.flock(self._data, fcntl.LOCK_SH)
            self._present_file = self._open_present()
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        except BaseException:
            os.close(self._lock)
            raise
        self._present = mmap.mmap(self._present_file, self._count, mmap.MAP_SHARED, mmap.PROT_READ)
        self.pages: PageMap | None = None

    def with_pages(self) -> PageMap:
        """The map of single pages, from now on ``pages`` too; for blobs whose chunks are all of whole pages.

        Raises:
            OSError: the disk is full.
        """
        if self.pages is None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # streamer and worker come here at once, and one makes the file
            try:
                self.pages = PageMap(self.folder / f"pages.{boot_id()}", self.size)
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)
        return self.pages

    def _open_data(self) -> int:
        data = os.open(self.folder / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.fstat(data).st_size != self.size:  # new, or not ours: nothing that the maps say holds
            maps = (path.name for kind in ("present.*", "pages.*") for path in self.folder.glob(kind))
            for name in ("complete", "durable", "sums", *maps):
                (self.folder / name).unlink(missing_ok=True)
            os.ftruncate(data, 0)
            os.ftruncate(data, self.size)
            (self.folder / "starts").unlink(missing_ok=True)
        if not (self.folder / "starts").exists():
            _put(self.folder / "starts", array("Q", self._starts).tobytes(), durable=False)
        return data

    def _open_present(self) -> int:
        path = present_file(self.folder)
        try:
            opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            for old in (*self.folder.glob("present.*"), *self.folder.glob("pages.*")):
                old.unlink(missing_ok=True)
            _put(path, self._durable(), durable=False)
            opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(opened).st_size != self._count:
            os.close(opened)
            raise StoreDamaged(f"{path}: want {self._count} bytes, one a chunk")
        return opened

    def _durable(self) -> bytes:
        try:
            data = (self.folder / "durable").read_bytes()
        except OSError:
            data = b""
        return data if len(data) == self._count else bytes(self._count)

    def has(self, first: int, last: int) -> bool:
        """Whether chunks ``first`` to ``last``, both included, are here."""
        return self._present.find(b"\0", first, last + 1) < 0

    def has_pages(self, first: int, last: int) -> bool:
        """Whether pages ``first`` to ``last``, both included, are here, in whole chunks or singly."""
        chunks = (bisect_right(self._starts, page * PAGE_SIZE) - 1 for page in (first, last))
        return self.has(*chunks) or (self.pages is not None and self.pages.has(first, last))

    def missing(self, first: int, last: int) -> Iterator[int]:
        """The chunks from ``first`` to ``last``, both included, that are not here."""
        at = self._present.find(b"\0", first, last + 1)
        while at >= 0:
            yield at
            at = self._present.find(b"\0", at + 1, last + 1)

    @property
    def missing_count(self) -> int:
        """Chunks that are not here."""
        return self._present[:].count(0)

    def read(self, offset: int, into: memoryview) -> None:
        """Fill ``into``; the caller has asked ``has`` first.

        Raises:
            StoreDamaged: the file is shorter than it was made.
        """
        done = 0
        while done < len(into):
            count = os.preadv(self._data, [into[done:]], offset + done)
            if count == 0:
                raise StoreDamaged(f"{self.folder / 'data'}: ends at {offset + done}, want {self.size} bytes")
            done += count

    def write(self, chunk: int, data: bytes) -> None:
        """Keep the verified bytes of ``chunk``: data first, then its mark.

        Raises:
            OSError: the disk is full.
        """
        view, at = memoryview(data), self._starts[chunk]
        while view:
            count = os.pwrite(self._data, view[:_PIECE], at)
            view, at = view[count:], at + count
        os.pwrite(self._present_file, b"\1", chunk)

    def write_pages(self, first: int, data: memoryview, count: int) -> None:
        """Keep ``count`` verified pages from page ``first`` on: data first, then their bits.

        Raises:
            OSError: the disk is full. ValueError: ``data`` are not so many pages; the last of a tar may be short.
        """
        at = first * PAGE_SIZE
        if len(data) != min(count * PAGE_SIZE, self.size - at):
            raise ValueError(f"{self.folder}: want {count} pages from page {first} on, got {len(data)} bytes")
        while data:
            written = os.pwrite(self._data, data, at)
            data, at = data[written:], at + written
        self.with_pages().add(first, count)

    def flush(self) -> bool:
        """Make durable what is here now, which takes the disk's time; True when that is all of it.

        Raises:
            OSError: the disk failed or is full.
        """
        present, before = self._present[:], self._durable()
        if _union(before, present) != before or not (self.folder / "complete").exists():
            # Outside the lock, which who opens the blob waits for.
            os.fdatasync(self._data)
        fresh = {chunk: self._sum(chunk) for chunk, here in enumerate(present) if here and not before[chunk]}
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # two that flush at once must not undo each other's marks
        try:
            before = self._durable()
            merged = _union(before, present)
            if merged != before:
                sums = read_sums(self.folder, self._count)
                for chunk, value in fresh.items():
                    sums[chunk] = value
                _put(self.folder / "sums", sums.tobytes())
                _put(self.folder / "durable", merged)
            if 0 in merged:
                return False
            if not (self.folder / "complete").exists():
                _put(self.folder / "complete", b"")
            return True
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _sum(self, chunk: int) -> int:
        """The CRC-32 of a chunk that is here."""
        start = self._starts[chunk]
        end = self._starts[chunk + 1] if chunk + 1 < self._count else self.size
        data = bytearray(end - start)
        self.read(start, memoryview(data))
        return zlib.crc32(data)

    def close(self) -> None:
        """Let go of the blob; what was not flushed is still believed until the next boot."""
        self._present.close()
        if self.pages is not None:
            self.pages.close()
        for opened in (self._data, self._present_file, self._lock):
            os.close(opened)


def read_starts(folder: Path) -> Sequence[int]:
    """Where each chunk of the blob in ``folder`` begins.

    Raises:
        OSError: that was not kept. StoreDamaged: the file is not what it was.
    """
    data = (folder / "starts").read_bytes()
    if not data or len(data) % 8:
        raise StoreDamaged(f"{folder / 'starts'}: want 8 bytes a chunk, got {len(data)}")
    return array("Q", data)


def read_sums(folder: Path, count: int) -> array[int]:
    """The CRC-32 of each of ``count`` chunks of the blob in ``folder``; 0 where none is known."""
    try:
        data = (folder / "sums").read_bytes()
    except OSError:
        data = b""
    return array("I", data if len(data) == 4 * count else bytes(4 * count))


def _is_at(opened: int, path: Path) -> bool:
    """Whether an open file is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(opened), path.stat())
    except OSError:
        return False


def _union(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "big") | int.from_bytes(other, "big")).to_bytes(len(one), "big")


def put_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Keep ``data`` as ``path``, whole or not at all.

    durable: the disk has it when this returns; else ``sync_file`` sees to that.

    Raises:
        StoreRefused: no room, or not ours to write.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put(path, data, durable=durable)
    except OSError as error:
        raise StoreRefused(f"{path}: {error.strerror}") from error


def _put(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write ``data`` to ``path`` in one step: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(opened, view) :]
            if durable:
                os.fsync(opened)
        finally:
            os.close(opened)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync(path.parent)


def sync_file(path: Path) -> None:
    """Let a power cut leave ``path``, and its name; takes the disk's time."""
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
