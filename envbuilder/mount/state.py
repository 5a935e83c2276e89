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
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.counters import Snapshot, read_counters
from envbuilder.mount.host import kernel
from envbuilder.mount.seen.totals import add_to_totals
from envbuilder.store.files import is_locked

#: Logs that are kept; a clean end leaves none.
_KEPT_LOGS = 50
#: Seconds that killed processes get to disappear.
_GRACE_S = 5.0
#: Seconds that a runtime gets to clear away after its container.
_RUNTIME_S = 1.0


class StateUnusable(HostError):
    """The state directory cannot be written."""

    hint = "Name another state directory, or run as root."


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


@dataclass(frozen=True, slots=True)
class MountStatus:
    """A mount and what it has done; ``alive`` is whether its keeper or supervisor lives."""

    record: Record
    counters: Snapshot
    alive: bool

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self.record), "counters": self.counters.to_json(), "alive": self.alive}


@dataclass(frozen=True, slots=True)
class MountFolder:
    """The folder of one mount in the state directory."""

    state_dir: Path
    id: str

    @property
    def path(self) -> Path:
        return self.state_dir / "mounts" / self.id

    @property
    def log(self) -> Path:
        return self.state_dir / "logs" / f"{self.id}.log"

    @property
    def counters(self) -> Path:
        return self.path / "counters"

    @property
    def waits(self) -> Path:
        return self.path / "waits"

    @property
    def reads(self) -> Path:
        return self.path / "reads"

    @property
    def worker(self) -> Path:
        return self.path / "worker"

    def create(self) -> int:
        """Make the folder; the descriptor of its lock, taken.

        Raises:
            StateUnusable: it cannot be made.
        """
        try:
            self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.path.parent, fcntl.LOCK_SH):
                self.path.mkdir(mode=0o700)
                lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in ("blobs", "lower", "rootfs"):
                (self.path / name).mkdir(mode=0o755)
        except OSError as error:
            raise self.unusable(error) from error
        return lock

    def unusable(self, error: OSError) -> StateUnusable:
        """What to raise in place of an ``error`` of writing into this folder."""
        return StateUnusable(f"state directory {self.state_dir}: {error.strerror}")

    def write(self, record: Record) -> None:
        """Record the mount, before anything is mounted."""
        temporary = self.path / ".record.json"
        temporary.write_text(json.dumps(asdict(record)))
        temporary.replace(self.path / "record.json")

    def write_worker(self, pid: int) -> None:
        """Record the worker, for whoever has to end it."""
        temporary = self.path / ".worker"
        temporary.write_text(f"{pid} {start_time(pid)}")
        temporary.replace(self.worker)

    def worker_process(self) -> tuple[int, int]:
        """Process id and start time of the worker; 0 and 0 when there is none."""
        with suppress(OSError, ValueError):
            pid, started = self.worker.read_text().split()
            return int(pid), int(started)
        return 0, 0

    def last_words(self) -> str:
        """The last line of the log."""
        try:
            return self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        except OSError:
            return ""

    def read(self) -> Record | None:
        """The record; None when there is none (it died before it mounted anything)."""
        try:
            value = json.loads((self.path / "record.json").read_bytes())
            return Record(**{**value, "points": tuple(value["points"]), "layers": tuple(value.get("layers", ()))})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def is_alive(self) -> bool:
        """Whether a keeper or supervisor holds its lock."""
        return is_locked(self.path / "lock")

    def remove(self) -> None:
        """Remove folder and empty log; mount points must be free."""
        for name in ("blobs", "lower", "rootfs"):
            with suppress(OSError):
                (self.path / name).rmdir()
        if not kernel.mount_points(self.path):
            if self.read() is not None:
                with suppress(OSError, EnvbuilderError):
                    add_to_totals(self.state_dir, self.id, read_counters(self.counters))
            shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, how)
        yield
    finally:
        os.close(opened)


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
            found.append(MountStatus(record, read_counters(folder.counters), folder.is_alive()))
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
            with suppress(OSError), _locked(folder.path.parent, fcntl.LOCK_EX):
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


def start_time(pid: int) -> int:
    """When ``pid`` was started, in clock ticks since boot; 0 when there is none. With the id it names a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def kill_process(process: tuple[int, int]) -> None:
    """Kill one process, if it is still the one that was meant, and wait until it is gone."""
    pid, started = process
    if pid <= 1:
        return
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if start_time(pid) == started:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                _wait_for(handle)
        finally:
            os.close(handle)


def source_name(id_: str) -> str:
    """The source of the mounts of one id, as mountinfo shows it: what tells ours from others'."""
    return f"envbuilder:{id_}"


def kill_inside(id_: str, *, spare: Container[int] = ()) -> None:
    """Kill every process that sees the private mounts of ``id_``: the container, then its runtime, then a worker.

    The runtime gets a moment to see its container end: it removes the control groups that it made.
    """
    name = f" {source_name(id_)} ".encode()
    ours = _pid_namespace(os.getpid())
    begun = time.monotonic()
    while found := [pid for pid in _processes() if pid not in spare and name in _mountinfo(pid)]:
        contained = [pid for pid in found if _pid_namespace(pid) != ours]
        waited_s = time.monotonic() - begun
        if waited_s > _GRACE_S:
            return
        for pid in contained or (found if waited_s > _RUNTIME_S else []):
            kill_process((pid, start_time(pid)))
        if not contained:
            time.sleep(0.01)


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names only


def _mountinfo(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/mountinfo").read_bytes()
    except OSError:
        return b""


def _wait_for(handle: int) -> None:

    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll(_GRACE_S * 1000)
