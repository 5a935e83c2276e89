"""What the chunk store takes, and which blobs go when that is more than it may.

A blob goes whole and by name: its folder is renamed, then removed. A file system that still reads its ``data``
keeps the inode, so nothing is ever punched out under a reader. In use is what somebody holds a flock on, and what
a mount names that has not been cleared away (``state.in_use``): after a crash, unknown is in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import Digest, InvalidDigest
from envbuilder.mount.chunks.quota import NO_QUOTA, Quota, existing
from envbuilder.mount.chunks.store import LAYER, ChunkStore
from envbuilder.store.files import is_locked

# How much it may take is looked for here, too.
__all__ = [
    "NO_QUOTA",
    "BlobUse",
    "EvictionPlan",
    "Quota",
    "enforce",
    "evict",
    "plan_eviction",
    "remove_going",
    "usage",
]

#: Folders on their way out begin with this; who finds one removes it.
_GOING = ".going."
_BLOCK = 512  # bytes of st_blocks (stat(2))
#: Of its file system the store leaves free what is less: a share, or bytes. Others write there too.
_FREE_SHARE, _FREE_SIZE = 0.02, 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobUse:
    """One blob: its name in the store and the digest of its layer, bytes on disk and of the whole tar, when it was last
    used, seconds since the epoch.
    """

    digest: str
    layer: str
    size: int
    whole: int
    used_at: float
    complete: bool
    in_use: bool

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPlan:
    """What is to go, oldest first. over: bytes above the limit that stay because they are in use."""

    blobs: tuple[BlobUse, ...]
    over: int = 0

    @property
    def size(self) -> int:
        """Bytes that it frees."""
        return sum(blob.size for blob in self.blobs)


def usage(store: ChunkStore, in_use: Collection[str] = ()) -> tuple[BlobUse, ...]:
    """Every blob of the store, the longest unused first; ``in_use``: digests (hex) that a mount names."""
    found = []
    with suppress(OSError):
        for folder in (store.directory / "blobs").iterdir():
            with suppress(OSError):
                if not folder.name.startswith("."):
                    found.append(_use(folder, in_use))
    return tuple(sorted(found, key=lambda blob: blob.used_at))


def _use(folder: Path, in_use: Collection[str]) -> BlobUse:
    with os.scandir(folder) as entries:
        size = sum(entry.stat(follow_symlinks=False).st_blocks * _BLOCK for entry in entries)
    return BlobUse(
        digest=folder.name,
        layer=_layer(folder),
        size=size,
        whole=_size(folder / "data"),
        used_at=(folder / "lock").stat().st_mtime,
        complete=(folder / "complete").exists(),
        in_use=folder.name in in_use or is_locked(folder / "data"),
    )


def _layer(folder: Path) -> str:
    """What somebody wrote there, or "" from a version that wrote nothing."""
    try:
        return str(Digest.parse((folder / LAYER).read_text()))
    except (OSError, ValueError, InvalidDigest):
        return ""


def plan_eviction(blobs: Collection[BlobUse], limit: int | None) -> EvictionPlan:
    """The longest unused of ``blobs`` that must go for the rest to fit into ``limit`` bytes; nothing that is in use."""
    if limit is None:
        return EvictionPlan(blobs=())
    over = sum(blob.size for blob in blobs) - limit
    going = []
    for blob in sorted(blobs, key=lambda blob: blob.used_at):
        if over > 0 and blob.size and not blob.in_use:
            going.append(blob)
            over -= blob.size
    return EvictionPlan(blobs=tuple(going), over=max(over, 0))


def evict(store: ChunkStore, plan: EvictionPlan) -> int:
    """Remove the blobs of ``plan`` that nobody has taken into use meanwhile; bytes freed."""
    return sum(blob.size for blob in plan.blobs if _evict(store.directory / "blobs" / blob.digest))


def remove_going(store: ChunkStore) -> None:
    """Finish what an eviction that was killed had begun."""
    for folder in (store.directory / "blobs").glob(f"{_GOING}*"):
        shutil.rmtree(folder, ignore_errors=True)


def enforce(store: ChunkStore, quota: Quota, in_use: Collection[str] = (), *, need: int = 0) -> EvictionPlan:
    """Bring the store under its quota, with room for ``need`` bytes, as far as what is in use allows; the plan.

    A file system that others have filled counts as well: a little of it stays free.
    """
    limit = quota.limit(store.directory)
    if limit is None:
        return EvictionPlan(blobs=())
    remove_going(store)
    blobs = usage(store, in_use)
    found = os.statvfs(existing(store.directory))
    spared = min(int(found.f_blocks * found.f_frsize * _FREE_SHARE), _FREE_SIZE)
    possible = sum(blob.size for blob in blobs) + found.f_bavail * found.f_frsize - spared
    plan = plan_eviction(blobs, max(min(limit, possible) - need, 0))
    evict(store, plan)
    return plan


def _evict(folder: Path) -> bool:
    """Remove one blob unless it is in use. Whoever opens it meanwhile finds its lock gone and makes it anew."""
    opened = []
    try:
        for name in ("lock", "data"):
            opened.append(os.open(folder / name, os.O_RDWR | os.O_CLOEXEC))
            fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        going = folder.with_name(f"{_GOING}{folder.name}.{os.urandom(4).hex()}")
        folder.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    except OSError:  # in use, or gone
        return False
    finally:
        for each in opened:
            os.close(each)
    return True


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
