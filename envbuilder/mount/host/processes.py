"""Processes of mounts: which one an id means, and the end of those that see a mount."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Container
from contextlib import suppress
from pathlib import Path

#: Seconds that killed processes get to disappear.
_GRACE_S = 5.0
#: Seconds that a runtime gets to clear away after its container.
_RUNTIME_S = 1.0


def start_time(pid: int) -> int:
    """When ``pid`` was started, in clock ticks since boot; 0 when there is none. With the id it names a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def is_running(process: tuple[int, int]) -> bool:
    """Whether ``process``, an id and a start time, is there and has not ended (a zombie has)."""
    pid, started = process
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in ("Z", "X") and int(fields[19]) == started


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
