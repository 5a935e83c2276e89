"""Heartbeats: a process of a mount that is stopped or hangs is found out, and killed, so that another takes its place.

Each of keeper, supervisor and worker counts up in memory that all of them share, ``LOOKS`` times within a limit; each
looks as often at who it watches. Whoever has not moved for so many looks in a row is killed, as any process may be:
what follows is what follows a kill (docs/decisions/0011-three-processes.md).

It must not be a mistake. Looks are counted, never seconds, so that a clock proves nothing; an observer that was itself
kept from looking (a suspended machine, a group that was stopped and continued, overload) forgets what it has counted.
And a look counts only if the other could have moved: not while it waits for a disk or for memory to be paged in, not in
a debugger's hands, and not while it waits for a processor.

The worker counts under the lock that each read takes, so that one which can answer nobody does not count on.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_log = logging.getLogger(__name__)

#: Who counts where.
KEEPER, SUPERVISOR, WORKER = 0, 1, 2
NAMES = ("keeper", "supervisor", "worker")
#: Looks, and heartbeats, within a limit.
LOOKS = 10
#: An observer that looks so many times later than it wanted to does not judge.
_LATE = 2.0
#: Of a limit the processor time that a process must have had without a heartbeat to be called hung while it runs.
_RUN_SHARE = 1 / 15
#: States in /proc/PID/task/*/stat (proc(5)): waits for a disk or a page; in a debugger's hands.
_EXCUSED = frozenset("Dt")
_TICKS = os.sysconf("SC_CLK_TCK")


class Beats:
    """One counter for each process of a mount, in memory that forked processes share. 0: it does not count now."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def beat(self, slot: int) -> None:
        """One more."""
        self._counts[slot] += 1

    def rest(self, slot: int) -> None:
        """What follows may take long, and nobody is to judge by it."""
        self._counts[slot] = 0

    def read(self, slot: int) -> int:
        """How far it is."""
        return int(self._counts[slot])


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process does: the states of its threads, and the processor seconds that it has had."""

    states: frozenset[str]
    cpu_s: float


def activity(pid: int) -> Activity:
    """What ``pid`` does now; no states when it is gone."""
    states = set()
    cpu_s = 0.0
    with suppress(OSError, ValueError, IndexError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            states.add(fields[0])
            cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS
    return Activity(frozenset(states), cpu_s)


class Pulse:
    """What one process sees of another, look by look. Pure: it is told what there is to see."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._last, self._missed, self._cpu_s = limit_s, 0, 0, 0.0

    def look(self, count: int, seen: Callable[[], Activity], *, late: bool = False) -> bool:
        """Whether it has stopped answering, its heartbeats being ``count``. late: we come much later than we meant."""
        if count != self._last or count == 0 or late:
            self._last, self._missed, self._cpu_s = count, 0, -1.0
            return False
        now = seen()
        if self._cpu_s < 0:
            self._cpu_s = now.cpu_s
        waits_for_cpu = "R" in now.states and now.cpu_s - self._cpu_s < self._limit_s * _RUN_SHARE
        if not now.states or now.states & _EXCUSED or waits_for_cpu:
            return False
        self._missed += 1
        if self._missed < LOOKS:
            return False
        self._missed = 0  # killed it may need a moment
        return True


class Heart:
    """The heartbeat of a process that waits in poll(2), and its eye on others.

    own: where it counts; None: it only looks. limit_s: what the others get to answer.
    """

    def __init__(self, beats: Beats, own: int | None, limit_s: float) -> None:
        self._beats, self._own, self._limit_s = beats, own, limit_s
        self._tick_s = limit_s / LOOKS
        self._watched: dict[int, tuple[int, int, Pulse]] = {}  # process id, a descriptor of it (pidfd)
        self._due = time.monotonic()

    def watch(self, slot: int, pid: int) -> None:
        """Look at the process in ``slot`` from now on, which is ``pid``; 0: no more."""
        before, handle, _ = self._watched.get(slot, (0, -1, None))
        if before == pid:
            return
        if before:
            os.close(handle)
            del self._watched[slot]
        with suppress(OSError):  # it is gone, which is for others to see
            if pid:
                self._watched[slot] = (pid, os.pidfd_open(pid), Pulse(self._limit_s))

    def wait(self, poll: select.poll, timeout_s: float) -> list[int]:
        """The descriptors that are ready; none after ``timeout_s``. Meanwhile we count, and look at the others."""
        end = time.monotonic() + timeout_s
        while True:
            if self._own is not None:
                self._beats.beat(self._own)
            now = time.monotonic()
            if now >= self._due:
                self._look(late=now - self._due > _LATE * self._tick_s)
                self._due = now + self._tick_s
            wait_s = max(0.0, min(self._due, end) - now)
            heard = [descriptor for descriptor, _ in poll.poll(wait_s * 1000)]
            if heard or time.monotonic() >= end:
                return heard

    def close(self) -> None:
        """We do something else from now on: nobody is judged by us, nor are we."""
        if self._own is not None:
            self._beats.rest(self._own)
        for slot in list(self._watched):
            self.watch(slot, 0)

    def _look(self, *, late: bool) -> None:
        for slot, (pid, handle, pulse) in list(self._watched.items()):
            if pulse.look(self._beats.read(slot), partial(activity, pid), late=late):
                states = "".join(sorted(activity(pid).states))
                _log.error(
                    "%s %d has not answered for %.0f s (%s): killing it", NAMES[slot], pid, self._limit_s, states
                )
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)


def keep_beating(beats: Beats, limit_s: float, able: Callable[[], None]) -> None:
    """Count for the worker, by a thread that ends with the process. able: returns if reads can be answered."""

    def live() -> None:
        while True:
            able()
            beats.beat(WORKER)
            time.sleep(limit_s / LOOKS)

    threading.Thread(target=live, name="heartbeat", daemon=True).start()
