"""The only place where other programs are started (uv, apt, crun, mount helpers).

Functions that need a program take a ``Runner``, so that a test can see and answer the call. ``start`` needs nothing of
the module ``subprocess``, which takes longer to import than a container to start.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from envbuilder.errors import EnvbuilderError, HostError

if TYPE_CHECKING:
    import subprocess

#: Bytes of stderr that an error shows: its tail is where tools say what went wrong.
_STDERR_TAIL = 4000


class ProgramMissing(HostError):
    """A program that this step needs is not installed."""


class ProgramFailed(EnvbuilderError):
    """A program ended with a status that is not 0; fields: ``argv``, ``status``, ``stderr``."""

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        import shlex  # noqa: PLC0415  seldom needed

        tail = stderr[-_STDERR_TAIL:].strip()
        super().__init__(f"{shlex.join(argv)}: exit status {status}" + (f"\n{tail}" if tail else ""))
        self.argv, self.status, self.stderr = tuple(argv), status, stderr


class Completed(NamedTuple):
    """What a program said: its exit status and both streams."""

    status: int
    stdout: bytes
    stderr: bytes


class Runner(Protocol):
    """Start a program, wait, and return what it said."""

    def __call__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
        check: bool = True,
        timeout_s: float | None = None,
    ) -> Completed: ...


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    check: bool = True,
    timeout_s: float | None = None,
) -> Completed:
    """Run ``argv`` without a shell; ``env`` replaces the whole environment when given.

    Raises:
        ProgramMissing: there is no such program.
        ProgramFailed: with ``check``, the exit status is not 0; or ``timeout_s`` passed.
    """
    import subprocess  # noqa: PLC0415  see above

    words = [os.fspath(word) for word in argv]
    try:
        # No pipes: what a program leaves running (an agent, a key ring) would hold one open after its own end.
        with _memory(stdin) as given, _memory() as said, _memory() as complained:
            done = subprocess.run(
                words,
                env=env,
                cwd=cwd,
                stdin=given,
                stdout=said,
                stderr=complained,
                check=False,
                timeout=timeout_s,
            )
            stdout, stderr = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in (said, complained))
    except FileNotFoundError as error:
        raise ProgramMissing(f"{words[0]}: not found", hint=f"Install {Path(words[0]).name}.") from error
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(words, -1, f"no answer within {timeout_s} s") from error
    if check and done.returncode != 0:
        raise ProgramFailed(words, done.returncode, stderr.decode(errors="replace"))
    return Completed(done.returncode, stdout, stderr)


@contextlib.contextmanager
def _memory(data: bytes = b"") -> Iterator[int]:
    """A file in memory that holds ``data``, to be read from its start.

    A pipe takes 4 KiB at a time: compiling a large package switched between both processes 100 times as often,
    for 5 percent more CPU time.
    """
    fd = os.memfd_create("envbuilder")
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def spawn(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start ``argv`` and return at once; streams are file descriptors or None (inherited).

    Raises:
        ProgramMissing: there is no such program.
    """
    import subprocess  # noqa: PLC0415  see above

    words = [os.fspath(word) for word in argv]
    try:
        return subprocess.Popen(
            words, env=env, pass_fds=pass_fds, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=new_session
        )
    except FileNotFoundError as error:
        raise ProgramMissing(f"{words[0]}: not found", hint=f"Install {Path(words[0]).name}.") from error


class Started:
    """A program that was started; ``returncode``: its status, -N after signal N, None while it runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """``returncode`` as it is now."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """``returncode``, once it has ended."""
        status = self._collect(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start(argv: Sequence[str | Path], *, stdout: int | None = None) -> Started:
    """Start ``argv``, a path first, with our streams and environment and no signal blocked; in the name spaces of the
    calling thread.

    stdout: a descriptor in place of ours.

    Raises:
        ProgramMissing: there is no such program.
    """
    words = [os.fspath(word) for word in argv]
    actions = [] if stdout is None else [(os.POSIX_SPAWN_DUP2, stdout, 1)]
    try:
        # Python ignores SIGPIPE and SIGXFSZ for itself.
        ignored = (signal.SIGPIPE, signal.SIGXFSZ)
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions, setsigmask=(), setsigdef=ignored)
    except FileNotFoundError as error:
        raise ProgramMissing(f"{words[0]}: not found", hint=f"Install {Path(words[0]).name}.") from error
    return Started(pid)
