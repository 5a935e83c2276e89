"""Is the chunk store what it was? Reads every durable chunk and compares its CRC-32; what differs is forgotten.

A chunk is verified against the image before it is kept; this is about disks. Forgotten chunks are fetched again by
the next read that wants them; mounts that read ``data`` past us see them come back in place.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import Digest
from envbuilder.mount.chunks.store import ChunkStore, StoreDamaged, read_starts, read_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What is wrong with one blob. chunks: those whose data changed; void: why nothing of it can be believed, or ""."""

    digest: str
    chunks: tuple[int, ...] = ()
    void: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What was found.

    checked: durable chunks that were read. unchecked: those of which no sum is known. repaired: marks were taken.
    """

    checked: int
    unchecked: int
    damages: tuple[Damage, ...]
    repaired: bool

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "damages": [damage.to_json() for damage in self.damages]}


def check_store(
    store: ChunkStore, *, repair: bool, progress: Callable[[int], None] = lambda _size: None
) -> CheckReport:
    """Read all that is durable; with ``repair``, forget what is not what it was. ``progress`` gets bytes read."""
    checked = unchecked = 0
    damages = []
    folders = sorted(path for path in (store.directory / "blobs").glob("*") if not path.name.startswith("."))
    for folder in folders:
        try:
            marks = _durable(folder)
            if marks and not (folder / "sums").exists():
                unchecked += marks.count(1)
                continue
            starts = read_starts(folder)
            bad = list(_bad_chunks(folder, starts, marks, progress))
        except (OSError, StoreDamaged) as error:
            if not (folder / "durable").exists():
                continue  # nothing of it was promised yet
            damages.append(Damage(digest=folder.name, void=str(error)))
            if repair:
                _void(folder)
            continue
        checked += marks.count(1)
        unchecked += max(_present_count(folder) - marks.count(1), 0)
        if bad:
            damages.append(Damage(digest=folder.name, chunks=tuple(bad)))
            if repair:
                _forget(store, folder, bad)
    return CheckReport(checked=checked, unchecked=unchecked, damages=tuple(damages), repaired=repair)


def _durable(folder: Path) -> bytes:
    try:
        return (folder / "durable").read_bytes()
    except FileNotFoundError:
        return b""


def _present_count(folder: Path) -> int:
    for file in folder.glob("present.*"):
        with suppress(OSError):
            return file.read_bytes().count(1)
    return 0


def _bad_chunks(folder: Path, starts: Sequence[int], marks: bytes, progress: Callable[[int], None]) -> Iterator[int]:
    """The durable chunks whose data are not what they were."""
    if marks and len(marks) != len(starts):
        raise StoreDamaged(f"{folder / 'durable'}: want {len(starts)} bytes, one a chunk, got {len(marks)}")
    sums = read_sums(folder, len(starts))
    with (folder / "data").open("rb", buffering=0) as data:
        size = os.fstat(data.fileno()).st_size
        # What the page cache holds is not what the disk would give: asked for from the disk, where it can be.
        os.posix_fadvise(data.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for chunk, here in enumerate(marks):
            if not here:
                continue
            end = starts[chunk + 1] if chunk + 1 < len(starts) else size
            try:
                found = os.pread(data.fileno(), end - starts[chunk], starts[chunk])
            except OSError:  # a bad sector
                found = b""
            progress(len(found))
            if zlib.crc32(found) != sums[chunk] or len(found) != end - starts[chunk]:
                yield chunk


def _forget(store: ChunkStore, folder: Path, chunks: Sequence[int]) -> None:
    """Take the marks of ``chunks``: ``complete`` first, so that no next mount reads past us."""
    (folder / "complete").unlink(missing_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marks = bytearray(_durable(folder))
        for chunk in chunks:
            marks[chunk] = 0
        store.write_marks(Digest(f"sha256:{folder.name}"), bytes(marks))
        for file in folder.glob("present.*"):
            opened = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                for chunk in chunks:
                    os.pwrite(opened, b"\0", chunk)
            finally:
                os.close(opened)
    finally:
        os.close(lock)


def _void(folder: Path) -> None:
    """Take every mark of a blob; maps that processes have open are blanked in place."""
    for name in ("complete", "durable", "sums"):
        (folder / name).unlink(missing_ok=True)
    for file in (*folder.glob("present.*"), *folder.glob("pages.*")):
        with suppress(OSError):
            opened = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(opened, bytes(os.fstat(opened).st_size), 0)
            finally:
                os.close(opened)
