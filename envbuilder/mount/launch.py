"""Starting the keeper of a mount: as a new interpreter, or as a copy of this process.

A copy has the modules that we have and is there at once; a new interpreter imports them for 0.2 CPU-seconds. A process
that may have threads, as who uses this package as a library does, must not be copied: ``envbuilder run`` has one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
from dataclasses import dataclass
from typing import NoReturn

from envbuilder import proc
from envbuilder.mount.host.daemon import END_SIGNALS

#: Seconds that the processes of a mount get to unmount and to remove what the job wrote.
END_S = 120.0
#: Bytes of what they say to the last that are read at a time.
_END_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Launched:
    """A keeper that waits for its request on ``channel``: its process id, and a descriptor of it (pidfd)."""

    channel: socket.socket
    pid: int
    handle: int

    def end(self) -> None:
        """Let keeper and supervisor clear away, and wait for their end."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)
            self.channel.settimeout(END_S)
            # Both have the other end: whoever of them lives clears away, and then it closes.
            while self.channel.recv(_END_SIZE):
                pass
        self.give_up()

    def give_up(self) -> None:
        """Close the channel, which ends what was not made; wait for the keeper's end."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        self.channel.close()
        if not poll.poll(END_S * 1000):
            # All of them, or one would start the others again; they are a session of their own.
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.handle)

    def let_go(self) -> None:
        """Leave it to itself: it outlives us."""
        self.channel.close()
        os.close(self.handle)


def spawned() -> Launched:
    """A keeper in a new interpreter."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = proc.spawn(_argv(theirs.fileno()), pass_fds=(theirs.fileno(),), new_session=True)
    process.returncode = 0  # by its id we wait for it, or not at all
    return Launched(ours, process.pid, os.pidfd_open(process.pid))


def forked() -> Launched:
    """A keeper that is a copy of this process, which must have one thread."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_keeper(theirs)
    theirs.close()
    return Launched(ours, pid, os.pidfd_open(pid))


def _become_keeper(channel: socket.socket) -> NoReturn:
    status = 1
    try:
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        # What the command line made of logging is for its own stderr.
        for handler in logging.root.handlers[:]:
            logging.root.removeHandler(handler)
        logging.getLogger("envbuilder").setLevel(logging.NOTSET)
        # It imports while the other process looks at the image.
        from envbuilder.mount.keeper import keep  # noqa: PLC0415  of the copy alone

        keep(channel)
        status = 0
    finally:
        os._exit(status)


def _argv(channel: int) -> list[str]:
    """Isolated, but with our own import path: neither the working directory nor PYTHONPATH of root decides."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from envbuilder.mount.keeper import main; main()"
    )
    path = [entry for entry in sys.path if os.path.isabs(entry)]  # noqa: PTH117 - entries are strings
    return [sys.executable, "-I", "-c", code, str(channel), json.dumps(path)]
