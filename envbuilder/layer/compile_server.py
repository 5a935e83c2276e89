"""Image interpreters that are kept running, so that a batch of modules costs a fork and not the start of a process.

``warm`` is a proc.Runner of compile_worker.py: the same answer as a process of its own gives, byte for byte.
Measured on this step: 2 ms a batch instead of 25. What is kept ends with us, however we end: it waits for our pipe.

Threading: each thread that asks at the same time has an interpreter of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess  # noqa: TID251 - the type of what proc.spawn returns
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder import proc

#: Seconds that an interpreter gets to end by itself when its pipe is closed.
_END_S = 5.0
#: A request of compile_worker.py without a source.
_NO_SOURCES = bytes(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """One interpreter that waits: its process, the three files of a request, and the pipes to ask and to hear."""

    process: subprocess.Popen[bytes]
    files: tuple[int, int, int]
    ask: int
    ended: int

    @classmethod
    def start(cls, argv: Sequence[str | Path], env: Mapping[str, str] | None) -> _Server:
        files = (os.memfd_create("request"), os.memfd_create("answer"), os.memfd_create("errors"))
        asked, ask = os.pipe()
        ended, end = os.pipe()
        try:
            theirs = (*files, asked, end)
            words = [*argv, *map(str, theirs)]
            process = proc.spawn(
                words, env=env, pass_fds=theirs, stdin=files[0], stdout=files[2], stderr=files[2], new_session=True
            )
        except BaseException:
            for number in (*files, ask, ended):
                os.close(number)
            raise
        finally:
            os.close(asked)
            os.close(end)
        return cls(process=process, files=files, ask=ask, ended=ended)

    def answer(self, data: bytes, timeout_s: float | None) -> proc.Completed | None:
        """What it says to ``data``; None when it says nothing in time. Once its status is not 0, it may be gone."""
        for number in self.files:
            os.ftruncate(number, 0)
            os.lseek(number, 0, os.SEEK_SET)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.files[0], rest) :]
        os.lseek(self.files[0], 0, os.SEEK_SET)
        with contextlib.suppress(BrokenPipeError):
            os.write(self.ask, b"?")
        poll = select.poll()
        poll.register(self.ended, select.POLLIN)
        if not poll.poll(None if timeout_s is None else timeout_s * 1000):
            return None
        heard = os.read(self.ended, 4)
        status = int.from_bytes(heard, "little", signed=True) if heard else self.process.wait()
        _, answer, errors = (os.pread(number, os.fstat(number).st_size, 0) for number in self.files)
        return proc.Completed(status, answer, errors)

    def close(self) -> None:
        """End it and what it has forked."""
        for number in (*self.files, self.ask):
            os.close(number)
        poll = select.poll()
        poll.register(self.ended, select.POLLHUP)
        # Not wait(timeout): that looks again after 1, 2, 4 ms, and would be half of what the end of a layer takes.
        if not poll.poll(_END_S * 1000):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.ended)


_lock = threading.Lock()
_idle: dict[tuple[str, ...], list[_Server]] = {}


def warm(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    check: bool = True,
    timeout_s: float | None = None,
) -> proc.Completed:
    """As ``proc.run``, for an ``argv`` that runs compile_worker.py; ``cwd`` is not used by it.

    Raises:
        ProgramMissing, ProgramFailed: as ``proc.run``. OSError: this host cannot run it.
    """
    del cwd
    words = [os.fspath(word) for word in argv]
    key = (*words, *(f"{name}={text}" for name, text in sorted((env or {}).items())))
    with _lock:
        waiting = _idle.get(key)
        server = waiting.pop() if waiting else None
    is_new = server is None
    server = server or _Server.start(words, env)
    done = None
    try:
        # With Python 3.10 a first fork compiles otherwise than later ones (decision 0003): none answers.
        done = server.answer(_NO_SOURCES, timeout_s) if is_new else None
        if not is_new or (done is not None and done.status == 0):
            done = server.answer(stdin, timeout_s)
    finally:
        if done is not None and done.status == 0:
            with _lock:
                _idle.setdefault(key, []).append(server)
        else:
            if done is None:
                os.killpg(server.process.pid, signal.SIGKILL)
            server.close()
    if done is None:
        raise proc.ProgramFailed(words, -1, f"no answer within {timeout_s} s")
    if check and done.status != 0:
        raise proc.ProgramFailed(words, done.status, done.stderr.decode(errors="replace"))
    return done


def close_idle() -> None:
    """End the interpreters that wait."""
    with _lock:
        servers = [server for waiting in _idle.values() for server in waiting]
        _idle.clear()
    for server in servers:
        server.close()


atexit.register(close_idle)
