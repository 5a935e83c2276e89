"""What is mounted, on disk, so that the next command can clear away what a crash left.

    STATE/mounts/<id>/lock           flock held by keeper and supervisor for as long as one of them lives
    STATE/mounts/<id>/record.json    a Record
    STATE/mounts/<id>/counters       see counters.py
    STATE/mounts/<id>/waits          see seen/waits.py
    STATE/mounts/<id>/worker         pid and start time of the worker
    STATE/mounts/<id>/{blobs,lower,rootfs}/   mount points
    STATE/totals.json                see seen/totals.py
    STATE/logs/<id>.log              what supervisor and worker had to say

A lock that can be taken means that both are dead: no process id to guess about.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from envbuilder.mount.counters import Snapshot, read_counters
from envbuilder.mount.folder import MountFolder, StateUnusable, locked
from envbuilder.mount.host import kernel
from envbuilder.mount.host.processes import is_running, kill_inside, kill_process, source_name, start_time

# What else is known of mounts is looked for here, too.
__all__ = [
    "MountFolder",
    "MountStatus",
    "Record",
    "StateUnusable",
    "clear",
    "folders",
    "in_use",
    "kill_inside",
    "kill_process",
    "reap",
    "source_name",
    "start_time",
    "statuses",
]

#: How mounts end (``Mounted.how``) that the kernel reads without us.
_UNSERVED = ("direct", "unpacked")
#: Logs that are kept; a clean end leaves none.
_KEPT_LOGS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One mount: where it is, of what, and what must go when it ends.

    points: mount points, in the order in which they are unmounted. scratch: removed at the end, or "".
    how: as ``Mounted.how``; "" until it is mounted. keeper: whose name space it is in.
    layers: digests (hex) of the blobs that it reads. origin: where they come from. metadata: file with its EROFS
    metadata, or "".
    """

    id: str
    directory: str
    image: str
    how: str
    writable: bool
    private: bool
    detached: bool
    supervisor: int
    points: tuple[str, ...]
    scratch: str = ""
    started_at: float = 0.0  # seconds since the epoch
    layers: tuple[str, ...] = ()
    origin: str = ""
    metadata: str = ""
    keeper: int = 0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MountStatus:
    """A mount and what it has done. alive: whether somebody keeps it (its keeper, supervisor or guard lives).

    worker: the process that answers reads; 0 when there is none, or none any more.
    """

    record: Record
    counters: Snapshot
    alive: bool
    worker: int = 0

    @property
    def state(self) -> Literal["kept", "unwatched", "dead"]:
        """Whether it is kept; if not, what becomes of reads.

        "unwatched": they are answered, by a worker that nobody replaces or by the kernel alone. "dead": they fail.
        """
        if self.alive:
            return "kept"
        return "unwatched" if self.worker or self.record.how.endswith(_UNSERVED) else "dead"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        told = {"counters": self.counters.to_json(), "alive": self.alive, "worker": self.worker}
        return {**self.record.to_json(), **told}


def folders(state_dir: Path) -> Iterator[MountFolder]:
    """Every mount that has a folder."""
    with suppress(OSError):
        for path in sorted((state_dir / "mounts").iterdir()):
            yield MountFolder(state_dir, path.name)


def statuses(state_dir: Path) -> tuple[MountStatus, ...]:
    """All mounts with their counters; nothing is cleared away."""
    found = []
    for folder in folders(state_dir):
        if record := folder.read():
            process = folder.worker_process()
            worker = process[0] if is_running(process) else 0
            found.append(MountStatus(record, read_counters(folder.counters), folder.is_alive(), worker))
    return tuple(found)


def in_use(state_dir: Path) -> frozenset[str]:
    """Digests (hex) of the blobs that mounts name which were not cleared away, living or not."""
    return frozenset(digest for folder in folders(state_dir) if (found := folder.read()) for digest in found.layers)


def reap(state_dir: Path) -> tuple[Record, ...]:
    """Clear away mounts that nobody keeps any more; what they were. In use and still served: left alone."""
    reaped = []
    for folder in folders(state_dir):
        if folder.is_alive():
            continue
        record = folder.read()
        if record is None:
            # Nobody is between making a folder and locking it now: without a lock it is a dead one's.
            with suppress(OSError), locked(folder.path.parent, fcntl.LOCK_EX):
                if not folder.is_alive() and folder.read() is None:
                    folder.remove()
        elif clear(folder, record, force=not record.detached):
            reaped.append(record)
    logs = sorted((state_dir / "logs").glob("*.log"), key=_age)
    for log in logs[:-_KEPT_LOGS]:
        log.unlink(missing_ok=True)
    return tuple(reaped)


def _age(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


def clear(folder: MountFolder, record: Record, *, force: bool) -> bool:
    """Unmount, stop the processes, remove what the mount had; False if it is in use and not ``force``."""
    if record.private:
        kill_inside(record.id)  # its mounts are seen by nobody else and go with the last of these
    else:
        try:
            for number, point in enumerate(record.points):
                # Users see the first one. What is below may be busy for a moment: with the end of what lay above it.
                while kernel.unmount(Path(point), force=force or number > 0):
                    pass
        except kernel.StillBusy:
            return False
    kill_process(folder.worker_process())
    if record.scratch:
        shutil.rmtree(record.scratch, ignore_errors=True)
    folder.remove()
    return True
