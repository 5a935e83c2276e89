"""The processes that a supervisor has: the worker, the streamer, those that pull, the one that makes durable.

All but the worker end with the supervisor. The worker goes on, so that readers do not notice, and the next supervisor
takes it over.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

from envbuilder.errors import HostError
from envbuilder.mount import worker
from envbuilder.mount.heartbeat import WORKER, Beats, Heart
from envbuilder.mount.host import kernel
from envbuilder.mount.host.daemon import END_SIGNALS
from envbuilder.mount.request import Serving
from envbuilder.mount.state import MountFolder, kill_process, start_time

_log = logging.getLogger(__name__)

#: A process that dies more often than this within this many seconds is not started again: then readers get EIO.
RESTARTS, RESTART_WINDOW_S = 8, 60.0
#: Seconds between two reports of how far a pull is.
_REPORT_S = 0.1
#: Bytes of a report that are read at a time.
_PIPE = 4096
#: Seconds that a worker gets to end by itself.
_END_S = 5.0


class WorkerFailed(HostError):
    """The worker ended with an error while everything was being fetched."""

    hint = "Read the log named in the message."


class Deaths:
    """How often a process died of late."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def one_more(self) -> bool:
        """It died now; whether that is too often."""
        now = time.monotonic()
        self._at = [death for death in self._at if now - death < RESTART_WINDOW_S] + [now]
        return len(self._at) > RESTARTS


class Workers:
    """The processes for ``serving``. ``in_child``: called in each first, to let go of what is the supervisor's.

    bundle: as of ``MountRequest``; the first process has it.
    """

    def __init__(
        self, serving: Serving, folder: MountFolder, in_child: Callable[[], None], beats: Beats, bundle: int = -1
    ) -> None:
        self._serving, self._folder, self._in_child, self._beats = serving, folder, in_child, beats
        self._bundle = bundle
        self.pid, self.handle = 0, -1
        self._deaths = Deaths()
        self.is_hopeless = False
        self._helpers: list[int] = []
        self._streamer, self._coming, self._asking = 0, -1, -1

    @property
    def pids(self) -> tuple[int, ...]:
        """All of them, as far as we know."""
        return (self.pid, *self._helpers)

    def fork(self, body: Callable[[], None], *, ends_with_us: bool = True) -> int:
        """The process id of a new process that runs ``body``."""
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            for number in END_SIGNALS:
                signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            self._in_child()
            worker.main(body, parent=parent if ends_with_us else 0)
        if self._bundle >= 0:
            os.close(self._bundle)
            self._bundle = -1
        return pid

    def start_streamer(self, device: int) -> None:
        """Started first: what the command will read is on its way while the rest is mounted.

        device: the /dev/fuse behind the devices, or -1 where a tree is served.
        """
        if self._streamer:
            return
        self._coming, writer = os.pipe()
        awaited, self._asking = os.pipe()
        os.set_blocking(self._asking, False)
        serving, folder, early = self._serving, self._folder, self._bundle
        self._streamer = self.fork(lambda: worker.bring(serving, folder, writer, device, awaited, early))
        self._helpers.append(self._streamer)
        # Nobody else may hold these ends: the worker learns of the streamer's end by them.
        os.close(writer)
        os.close(awaited)

    def streams(self) -> bool:
        """Whether the streamer is still there."""
        with suppress(ChildProcessError):
            if self._streamer:
                return os.waitid(os.P_PID, self._streamer, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        return False

    def start_flusher(self) -> None:
        """What is here is made durable while the kernel already reads it."""
        self._helpers.append(self.fork(lambda: worker.flush(self._serving, self._folder)))

    def start(self, device: int, tree: Path | None) -> None:
        """Start the worker; see ``worker.serve``."""
        serving, folder, beats = self._serving, self._folder, self._beats
        coming, asking = self._coming, self._asking
        beats.beat(WORKER)  # from now on it is judged
        self.pid = self.fork(
            lambda: worker.serve(device, serving, folder, coming, asking, beats, tree), ends_with_us=False
        )
        self.handle = os.pidfd_open(self.pid)
        self._folder.write_worker(self.pid)

    def adopt(self) -> bool:
        """Take over the worker that a supervisor before us had; False when it is dead."""
        pid, started = self._folder.worker_process()
        if not pid:
            return False
        with suppress(OSError):  # it is gone
            handle = os.pidfd_open(pid)
            if start_time(pid) == started:
                self.pid, self.handle = pid, handle
                return True
            os.close(handle)
        return False

    def lost(self) -> bool:
        """The worker is dead; whether there should be another one. No, and ``is_hopeless``: it died too often."""
        pid, status = self.pid, self._collect(self.pid)
        os.close(self.handle)
        self.pid, self.handle = 0, -1
        if status == 0:
            return False  # it saw the file system go
        _log.error("worker %d died%s", pid, "" if status is None else f": {status}")
        self.is_hopeless = self._deaths.one_more()
        if self.is_hopeless:
            _log.error("it died %d times in a minute: reads fail from now on", RESTARTS + 1)
        return not self.is_hopeless

    def end(self) -> None:
        """The worker ends by itself, having seen its file system go; if not, at once."""
        if self.handle < 0:
            return
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        if not poll.poll(_END_S * 1000):
            kill_process((self.pid, start_time(self.pid)))
        self._collect(self.pid)
        os.close(self.handle)
        self.pid, self.handle = 0, -1

    def end_helpers(self) -> None:
        """End all but the worker, at once."""
        for helper in self._helpers:
            with suppress(ProcessLookupError):
                os.kill(helper, signal.SIGKILL)
            self._collect(helper)
        self._helpers = []

    def let_go(self) -> None:
        """They go on without us."""
        if self.handle >= 0:
            os.close(self.handle)
        for pipe in (self._coming, self._asking):
            if pipe >= 0:
                os.close(pipe)

    def fetch_all(self, progress: Callable[[int, int], bool]) -> None:
        """Everything into the store, by a process of its own, before anything is mounted.

        ``progress`` gets chunks done and chunks in all, and says whether anybody still wants them.

        Raises:
            WorkerFailed: with the last line of the log.
        """
        reader, writer = os.pipe()

        def report(done: int, total: int) -> None:
            self._beats.beat(WORKER)
            os.write(writer, f"{done} {total}\n".encode())

        pid = self.fork(lambda: worker.fetch_all(self._serving, self._folder, report))
        os.close(writer)
        last = 0.0
        for line in self._lines(reader, pid):
            done, total = line.split()
            if time.monotonic() - last > _REPORT_S:
                last = time.monotonic()
                if not progress(int(done), int(total)):
                    os.kill(pid, signal.SIGKILL)
        if self._collect(pid) != 0:
            raise WorkerFailed(
                f"{self._serving.image}: not all of it could be fetched: {self._folder.last_words()} "
                f"(log: {self._folder.log})"
            )

    def _lines(self, reader: int, pid: int) -> Iterator[str]:
        """What ``pid`` reports, to its end, which comes too when it hangs."""
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        heart = Heart(self._beats, None, self._serving.answer_limit_s)
        heart.watch(WORKER, pid)
        with os.fdopen(reader, "rb", 0) as pipe, closing(heart):
            rest = b""
            while True:
                if heart.wait(poll, self._serving.answer_limit_s):
                    if not (data := pipe.read(_PIPE)):
                        return
                    *lines, rest = (rest + data).split(b"\n")
                    yield from (line.decode() for line in lines)

    @staticmethod
    def _collect(pid: int) -> int | None:
        """The status of a process that has ended; None when it is not a child of ours."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return None


def give_up(name: str) -> None:
    """Let every read of the FUSE mounts from ``name`` fail, now and later: nobody is there to answer."""
    for point in kernel.mount_points():
        if point.fstype == "fuse" and point.source == name:
            with suppress(OSError):
                kernel.abort_fuse(point.directory)
