"""The keeper: the outermost process of a mount, which holds what must not be lost and starts supervisors.

``envbuilder run`` and ``mount`` start it; it forks a supervisor, which mounts and forks a worker. It has the mount name
space, the lock of the mount's folder, the channel to the process that asked, and the /dev/fuse descriptor, once that is
mounted. Whichever of the three is killed, another starts it again: the supervisor the worker, the keeper the
supervisor, and a supervisor without a keeper becomes one and starts a supervisor. So any two may be killed at once:
readers wait, and no more. docs/decisions/0011-three-processes.md.

It is started early, imports while the other process still looks at the image, and stays single-threaded, so that it
can fork.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
from contextlib import closing, suppress
from dataclasses import replace

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.heartbeat import KEEPER, SUPERVISOR, WORKER, Beats, Heart
from envbuilder.mount.host import kernel
from envbuilder.mount.host.daemon import END_SIGNALS, log_to, signals, spare_memory_killer
from envbuilder.mount.request import MountRequest, receive_request, send_error
from envbuilder.mount.state import MountFolder, source_name
from envbuilder.mount.supervisor import Kept, Supervisor
from envbuilder.mount.workers import Deaths, give_up

_log = logging.getLogger(__name__)

#: Seconds that nothing need be heard: an hour.
_LONG_S = 3600.0
#: Bytes of a message of a supervisor.
_MESSAGE = 64


class _Keeper:
    """The life of a mount. Each process of it that is not a worker is in here, as keeper or as supervisor."""

    def __init__(self, channel: socket.socket, request: MountRequest, lock: int) -> None:
        self._channel, self._request, self._lock = channel, request, lock
        self._folder = MountFolder(request.state_dir, request.id)
        self._device = self._worker = -1
        self._worker_pid = 0
        self._mounted = self._begun = False
        self._why_not = ""  # to go on
        self._deaths = Deaths()
        self._beats = Beats()

    def live(self) -> None:
        """Keep a supervisor, or be one, until the mount has ended."""
        while True:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            keeper, child = os.getpid(), os.fork()
            if child == 0:
                ours.close()
                ended = self._supervise(Kept(self._channel, theirs, self._lock, keeper, self._beats))
                theirs.close()
            else:
                theirs.close()
                ended = self._keep(child, ours)
                ours.close()
            self._begun = True
            if ended:
                return

    def _supervise(self, kept: Kept) -> bool:
        """The life of a supervisor; False: its keeper was killed, so that we are the keeper from now on."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervisor = Supervisor(self._request, kept, self._device)
        self._request = replace(self._request, bundle=-1)  # it is the first supervisor's
        why_not = self._why_not or ("" if self._mounted else "its supervisor was killed while it mounted")
        if supervisor.resume(why_not=why_not) if self._begun else supervisor.mount():
            return True
        _log.warning("the keeper %d was killed: taking its place", kept.keeper)
        self._device, self._mounted = supervisor.device, True
        return False

    def _keep(self, supervisor: int, link: socket.socket) -> bool:
        """Watch a supervisor; False: it was killed, and there must be another."""
        link.setblocking(False)
        if self._request.bundle >= 0:
            # Who writes into it shall learn that its reader is gone.
            os.close(self._request.bundle)
            self._request = replace(self._request, bundle=-1)
        heart = Heart(self._beats, KEEPER, self._request.answer_limit_s)
        heart.watch(SUPERVISOR, supervisor)
        with closing(heart), signals(*END_SIGNALS, signal.SIGCHLD) as wakeup:
            while (status := _collected(supervisor)) is None:
                poll = select.poll()
                for descriptor in filter(_is_open, (wakeup, link.fileno(), self._worker)):
                    poll.register(descriptor, select.POLLIN)
                heard = heart.wait(poll, _LONG_S)
                self._listen(link)
                heart.watch(WORKER, self._worker_pid)
                if wakeup in heard:
                    for number in os.read(wakeup, _MESSAGE):
                        self._pass_on(number, supervisor)
                if self._worker in heard:
                    self._worker_died(supervisor)
        self._listen(link)
        self._forget_worker()
        if status == 0:
            return True
        _log.error("supervisor %d died: %s", supervisor, status)
        if self._deaths.one_more():
            _log.error("it died again and again: reads fail from now on")
            give_up(source_name(self._request.id))
            return True
        return False

    def _listen(self, link: socket.socket) -> None:
        """Take what the supervisor has told us."""
        with suppress(OSError):  # there is no more
            while True:
                message, descriptors, _, _ = socket.recv_fds(link, _MESSAGE, 1)
                if not message:
                    return
                self._forget_worker()
                if message == Kept.READY:
                    self._mounted = True
                    self._device, before = next(iter(descriptors), -1), self._device
                    if before >= 0:
                        os.close(before)
                elif pid := int(message):
                    with suppress(OSError):
                        self._worker, self._worker_pid = os.pidfd_open(pid), pid

    def _pass_on(self, number: int, supervisor: int) -> None:
        if number in END_SIGNALS:
            self._why_not = "it was asked to end"
            os.kill(supervisor, signal.SIGTERM)

    def _worker_died(self, supervisor: int) -> None:
        """Before the mount is ready. The supervisor may hang in it, waiting for what the worker had taken."""
        self._why_not = f"its worker ended before it was mounted: {self._folder.last_words()}"
        os.kill(supervisor, signal.SIGKILL)
        give_up(source_name(self._request.id))
        self._forget_worker()

    def _forget_worker(self) -> None:
        if self._worker >= 0:
            os.close(self._worker)
        self._worker, self._worker_pid = -1, 0


def _is_open(descriptor: int) -> bool:
    return descriptor >= 0


def _collected(child: int) -> int | None:
    """The status of ``child`` if it has ended; others that ended are forgotten, as they are not ours to judge."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    """Keep the mount that is asked for on the descriptor in the first argument."""
    keep(socket.socket(fileno=int(sys.argv[1])))


def keep(channel: socket.socket) -> None:
    """Take a request from ``channel`` and live as long as its mount."""
    request = receive_request(channel)
    if request is None:
        return
    folder = MountFolder(request.state_dir, request.id)
    try:
        lock = folder.create()
        log_to(folder.log)
        spare_memory_killer()
        if request.private:
            kernel.private_mounts()
        _Keeper(channel, request, lock).live()
    except EnvbuilderError as error:
        send_error(channel, error)
        folder.remove()
    except Exception as error:
        _log.exception("process %d of the mount ended", os.getpid())
        send_error(channel, error)
        raise


if __name__ == "__main__":
    main()
