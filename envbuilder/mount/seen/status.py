"""What a mount does at this moment: rates, and what its job waits for, by the names of files."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.mount.counters import Snapshot
from envbuilder.mount.metrics import hit_rate
from envbuilder.mount.seen.files import FileMap, file_map
from envbuilder.mount.seen.report import FileWaits, by_file, named_waits
from envbuilder.mount.seen.waits import read_waits
from envbuilder.mount.state import MountFolder, MountStatus

#: Files that were waited for longest.
_FILES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A mount now. rate: bytes a second since the last look. waiting: seconds and file of reads that wait now.

    by_file: the files that were waited for longest so far. log: what its processes had to say; None: nothing so far.
    """

    status: MountStatus
    rate: float
    waiting: tuple[tuple[float, str], ...]
    by_file: tuple[FileWaits, ...]
    log: Path | None

    @property
    def state(self) -> str:
        """Fetching, when bytes come or should; else idle. Of a mount that nobody keeps, ``MountStatus.state``."""
        if self.status.state != "kept":
            return self.status.state
        return "fetching" if self.rate > 0 or self.waiting else "idle"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            **self.status.to_json(),
            "hit_rate": hit_rate(self.status.counters),
            "bytes_per_s": round(self.rate),
            "state": self.state,
            "waiting": [{"seconds": round(seconds, 3), "path": path} for seconds, path in self.waiting],
            "waits_by_file": [each.to_json() for each in self.by_file],
            "log": str(self.log) if self.log else None,
        }


@dataclass(slots=True)
class Follower:
    """Looks at mounts again and again; names of files are read once for each image."""

    state_dir: Path
    _files: dict[str, FileMap | None] = field(default_factory=dict)
    _before: dict[str, tuple[float, Snapshot]] = field(default_factory=dict)

    def look(self, status: MountStatus) -> Moment:
        """``status``, with what its job waits for and has waited for."""
        record = status.record
        if record.metadata not in self._files:
            self._files[record.metadata] = file_map(record.metadata)
        folder = MountFolder(self.state_dir, record.id)
        named = named_waits(read_waits(folder.waits), self._files[record.metadata])
        now = time.monotonic()
        then, counted = self._before.get(record.id, (now, status.counters))
        self._before[record.id] = (now, status.counters)
        moved = status.counters.fetched_bytes - counted.fetched_bytes
        return Moment(
            status=status,
            rate=moved / (now - then) if now > then else 0.0,
            waiting=tuple(sorted(((wait.waited_s, path) for wait, path in named if wait.waiting), reverse=True)),
            by_file=by_file(named)[:_FILES],
            log=folder.log if folder.log.is_file() and folder.log.stat().st_size else None,
        )
