"""The folder of one mount in the state directory: its lock, its record, its log, its mount points.

A start of an image that is whole on this node imports this before its command runs, so it imports little itself.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from envbuilder.errors import HostError
from envbuilder.mount.host import kernel
from envbuilder.mount.host.processes import start_time
from envbuilder.mount.seen.ended import count_ended

if TYPE_CHECKING:
    from envbuilder.mount.state import Record


class StateUnusable(HostError):
    """The state directory cannot be written."""

    hint = "Name a state directory (ENVBUILDER_STATE) that has room and that you may write to, or run as root."


class MountFolder(NamedTuple):
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
            with locked(self.path.parent, fcntl.LOCK_SH):
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
        self.write_values(record.to_json())

    def write_values(self, values: Mapping[str, Any]) -> None:
        """As ``write``, from the values of a Record by name."""
        temporary = self.path / ".record.json"
        temporary.write_text(json.dumps(values))
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
        from envbuilder.mount.state import Record  # noqa: PLC0415  who starts what is whole reads none

        try:
            value = json.loads((self.path / "record.json").read_bytes())
            return Record(**{**value, "points": tuple(value["points"]), "layers": tuple(value.get("layers", ()))})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def is_alive(self) -> bool:
        """Whether a keeper or supervisor holds its lock."""
        from envbuilder.store.files import is_locked  # noqa: PLC0415  of who looks at mounts, not of who starts

        return is_locked(self.path / "lock")

    def _counted(self) -> Mapping[str, int]:
        if not self.counters.exists():
            return {}  # nobody served it
        from envbuilder.mount.counters import read_counters  # noqa: PLC0415  see above

        return read_counters(self.counters).to_json()

    def remove(self) -> None:
        """Remove folder and empty log; mount points must be free."""
        import shutil  # noqa: PLC0415  not before a command has run

        for name in ("blobs", "lower", "rootfs"):
            with suppress(OSError):
                (self.path / name).rmdir()
        if not kernel.mount_points(self.path):
            if (self.path / "record.json").exists():
                with suppress(OSError):
                    count_ended(self.state_dir, self.id, self._counted())
            shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()


@contextmanager
def locked(folder: Path, how: int) -> Iterator[None]:
    """Hold an flock on a folder; ``how``: LOCK_SH or LOCK_EX."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, how)
        yield
    finally:
        os.close(opened)
