"""How a start went: bytes over time, and what was waited for, file by file."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.mount.counters import read_counters
from envbuilder.mount.seen.files import FileMap, file_map
from envbuilder.mount.seen.waits import Wait, read_waits

#: Seconds between two looks at the counters at first; doubled whenever there are so many.
_EVERY_S, _MOST_SAMPLES = 0.05, 600
#: Waits and files that a report names.
_MOST_WAITS, _MOST_FILES = 2000, 200
#: What the pages of names and of the image's end are called.
_NO_FILE = "(no file)"


@dataclass(frozen=True, slots=True)
class Sample:
    """What had been fetched after ``seconds``: in all, and of that in a hot bundle, bytes."""

    seconds: float
    fetched: int
    hot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWaits:
    """What was waited for in one file: reads, and seconds and bytes of them together."""

    path: str
    waits: int
    seconds: float
    size: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"path": self.path, "waits": self.waits, "seconds": round(self.seconds, 4), "bytes": self.size}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one start. waits: begin, seconds, and path, ``begun_s`` of the start taken off."""

    samples: tuple[Sample, ...] = ()
    waits: tuple[tuple[float, float, str], ...] = ()
    by_file: tuple[FileWaits, ...] = ()

    def blocked_s(self, until_s: float) -> float:
        """Seconds until ``until_s`` in which at least one read waited."""
        total, end = 0.0, 0.0
        for begun, waited, _ in sorted(self.waits):
            start, stop = max(begun, end), min(begun + waited, until_s)
            if stop > start:
                total, end = total + stop - start, stop
        return total

    def to_json(self) -> dict[str, Any]:
        """As a JSON object: the newest waits, and the files that were waited for longest."""
        paths = {path: number for number, path in enumerate(dict.fromkeys(path for _, _, path in self.waits))}
        return {
            "timeline": [[round(each.seconds, 3), each.fetched, each.hot] for each in self.samples],
            "waits_by_file": [each.to_json() for each in self.by_file[:_MOST_FILES]],
            "wait_paths": list(paths),
            "waits": [
                [round(begun, 4), round(waited, 4), paths[path]] for begun, waited, path in self.waits[-_MOST_WAITS:]
            ],
        }


class Watch:
    """Samples the counters of a mount in a thread of its own, until it is stopped."""

    def __init__(self, counters: Path, waits: Path, *, begun_s: float) -> None:
        self._counters, self._waits, self._begun_s = counters, waits, begun_s
        self._samples: list[Sample] = [Sample(0.0, 0, 0)]
        self._found: list[Wait] = []
        self._stopped = threading.Event()

    def _look(self) -> None:
        now = read_counters(self._counters)
        self._samples.append(Sample(time.monotonic() - self._begun_s, now.fetched_bytes, now.hot_bytes))

    def _sample(self) -> None:
        every = _EVERY_S
        while not self._stopped.wait(every):
            self._look()
            if len(self._samples) > _MOST_SAMPLES:
                self._samples, every = self._samples[::2], every * 2

    def seen(self, metadata: Path | None) -> Seen:
        """What it saw; ``metadata``: the file with the image's EROFS metadata."""
        return summary(self._samples, self._found, file_map(metadata or ""), begun_s=self._begun_s)

    @contextlib.contextmanager
    def running(self) -> Iterator[Watch]:
        """Watch as long as this lasts."""
        thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._look()
        thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            thread.join()
            self._look()
            self._found = read_waits(self._waits)


def summary(samples: Sequence[Sample], waits: Iterable[Wait], files: FileMap | None, *, begun_s: float) -> Seen:
    """``samples`` and ``waits`` with the names of files."""
    named = [(wait, _path(wait, files)) for wait in waits]
    return Seen(
        samples=tuple(samples),
        waits=tuple((wait.begun_s - begun_s, wait.waited_s, path) for wait, path in named),
        by_file=by_file(named),
    )


def by_file(named: Iterable[tuple[Wait, str]]) -> tuple[FileWaits, ...]:
    """Waits added up for each file, the longest first."""
    sums: dict[str, tuple[int, float, int]] = {}
    for wait, path in named:
        count, seconds, size = sums.get(path, (0, 0.0, 0))
        sums[path] = (count + 1, seconds + wait.waited_s, size + wait.size)
    found = (
        FileWaits(path=path, waits=count, seconds=seconds, size=size) for path, (count, seconds, size) in sums.items()
    )
    return tuple(sorted(found, key=lambda each: (-each.seconds, each.path)))


def named_waits(waits: Iterable[Wait], files: FileMap | None) -> list[tuple[Wait, str]]:
    """Each wait with the path of its file."""
    return [(wait, _path(wait, files)) for wait in waits]


def full_pull_s(report: Mapping[str, Any]) -> float | None:
    """Seconds that a full pull would have taken at the best rate that ``report``'s timeline shows; None: none seen."""
    samples = report.get("timeline") or []
    best = 0.0
    for number, (seconds, fetched, _) in enumerate(samples):
        # Over half a second at least: one sample's rate is noise.
        for before in reversed(samples[:number]):
            if seconds - before[0] >= 0.5:
                best = max(best, (fetched - before[1]) / (seconds - before[0]))
                break
    return report["image_bytes"] / best if best > 1 << 16 else None


def _path(wait: Wait, files: FileMap | None) -> str:
    return (files.path(wait.device, wait.offset, wait.size) if files else "") or _NO_FILE
