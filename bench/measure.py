"""What a program costs: wall clock, CPU and memory of it and all its children.

Memory is sampled from /proc: the peak of the sum of resident sizes over the tree, and the peak of
what is theirs alone (resident less shared), since mapped files count for every process that maps them
and are given back under pressure.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two samples of memory; a sample costs about 3 ms with 200 processes.
_EVERY_S = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A program of a bench ended with an error: its last lines are the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One step. ``first_output_s``: until the first byte on stdout, 0 when there was none."""

    seconds: float
    cpu_seconds: float
    peak_rss_mb: float
    peak_private_mb: float
    first_output_s: float = 0.0
    stdout: str = ""

    def __add__(self, other: Cost) -> Cost:
        """The cost of one step after the other; first output is the other's, counted from our start."""
        return Cost(
            seconds=self.seconds + other.seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            peak_rss_mb=max(self.peak_rss_mb, other.peak_rss_mb),
            peak_private_mb=max(self.peak_private_mb, other.peak_private_mb),
            first_output_s=self.seconds + other.first_output_s if other.first_output_s else 0.0,
            stdout=other.stdout,
        )

    def column(self) -> dict[str, float | str]:
        """For the table and the result line."""
        return {
            "seconds": round(self.seconds, 2),
            "CPU seconds": round(self.cpu_seconds, 2),
            "peak RSS MB": round(self.peak_rss_mb),
            "peak private MB": round(self.peak_private_mb),
        }


def measured(
    argv: Sequence[str | Path],
    *,
    log: Path,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    also: int = 0,
) -> Cost:
    """Run ``argv`` to its end; stderr is appended to ``log``.

    ``also``: a process that works for it, whose tree's memory counts too.

    Raises:
        Failed: it ended with a status other than 0.
    """
    words = [str(word) for word in argv]
    with log.open("ab") as errors:
        errors.write(("$ " + " ".join(words) + "\n").encode())
        errors.flush()
        start = time.monotonic()
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=None if environ is None else {**os.environ, **environ},
            cwd=cwd,
        )
        sampler = _Sampler(process.pid, *([also] if also else []))
        sampler.start()
        assert process.stdout is not None
        first = process.stdout.read(1)
        first_at = time.monotonic() - start if first else 0.0
        stdout = first + process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        sampler.stop()
    if process.returncode:
        said = log.read_text(errors="replace").rpartition("\n$ ")[2].partition("\n")[2]
        tail = "\n".join(said.splitlines()[-15:])
        raise Failed(
            f"exit status {process.returncode} of: {' '.join(words)}\n{tail}\n{stdout.decode(errors='replace')[-500:]}"
        )
    return Cost(
        seconds=seconds,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_rss_mb=sampler.rss * _PAGE / 1e6,
        peak_private_mb=sampler.private * _PAGE / 1e6,
        first_output_s=first_at,
        stdout=stdout.decode(errors="replace"),
    )


def cpu_seconds(pid: int) -> float:
    """CPU that a running process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def tree_cpu_seconds(root: int) -> float:
    """CPU that a process, its descendants and those of them that have ended have used so far."""
    total = 0
    for pid in _tree(root):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / _TICK


class _Sampler(threading.Thread):
    """Peak memory, in pages, of processes and their descendants."""

    def __init__(self, *roots: int) -> None:
        super().__init__(daemon=True)
        self._roots, self._ended = roots, threading.Event()
        self.rss = self.private = 0

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            sizes = [_resident(pid) for root in self._roots for pid in _tree(root)]
            self.rss = max(self.rss, sum(resident for resident, _ in sizes))
            self.private = max(self.private, sum(resident - shared for resident, shared in sizes))


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  ten times a second: no Path objects
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [root]
    while queue:
        found.append(pid := queue.pop())
        queue += children.get(pid, [])
    return found


def _resident(pid: int) -> tuple[int, int]:
    """Resident and shared pages; none of a process that is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
        return int(fields[1]), int(fields[2])
    except (OSError, IndexError):
        return 0, 0
