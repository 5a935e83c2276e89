"""One container in the foreground: started by a runtime, signals passed on, its exit status.

The command is process 1 of a pid name space, so that nothing it started survives it. The kernel
drops signals that process 1 has no handler for; outside a container they would have ended it, so
here they do: it is killed and the status is the signal's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder import proc
from envbuilder.mount.host import kernel

if TYPE_CHECKING:
    import threading
    from types import FrameType

#: What ends or informs a job; a terminal's own (TSTP, TTIN, TTOU, WINCH) are between it and the runtime.
_PASSED_ON = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
#: siginfo.si_code of signals that the kernel made, a terminal's Ctrl-C among them (asm-generic/siginfo.h).
_SI_KERNEL = 0x80
#: Seconds between looks for a process id that the runtime has not written yet.
_POLL_S = 0.01
#: Seconds until a signal is looked at again, and the longest that the runtime's end may go unnoticed.
_AGAIN_S, _LOOK_S = 0.1, 1.0


class Container:
    """A container about to run in the mount name space of process ``inside``; 0: in that of the calling thread.

    hides: the runtime is not to see unified control groups of a hybrid host (``kernel.hide_unified``).
    meanwhile: called now and then while it runs, and when a child of ours has ended.
    """

    def __init__(
        self,
        argv: list[str],
        pid_file: Path,
        *,
        inside: int = 0,
        hides: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self._argv, self._pid_file, self._inside, self._hides = argv, pid_file, inside, hides
        self._meanwhile = meanwhile
        self._fatal = 0  # the signal that we carried out for it
        self._given: tuple[int, int, str] | None = None  # process, signal and program, to be looked at again

    def run(self, first_output: Callable[[], None] | None, *, quiet: bool = False) -> int:
        """Run it with our own stdin, stdout, stderr; its status, or 128 + the signal that ended it.

        first_output: called once when it first writes to stdout, which then goes through a pipe of ours.
        quiet: what it writes to stdout goes nowhere.
        """
        pump: threading.Thread | None = None
        with _signals_held() as held:
            reader = writer = -1
            if quiet:
                writer = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            elif first_output is not None:
                reader, writer = os.pipe()
            try:
                process = self._start(writer)
            finally:
                if writer >= 0:
                    os.close(writer)
            if first_output is not None and reader >= 0:
                pump = _pumping(reader, first_output)
            try:
                self._wait(process, held=held)
            except BaseException:
                process.kill()
                raise
            finally:
                process.wait()
                if pump is not None:
                    pump.join()
        if self._fatal:
            return 128 + self._fatal
        status = process.wait()
        return status if status >= 0 else 128 - status

    def _start(self, stdout: int) -> proc.Started:
        """Start the runtime with ``stdout``, or with ours if that is -1."""

        def started() -> proc.Started:
            if self._hides:
                kernel.hide_unified()
            return proc.start(self._argv, stdout=stdout if stdout >= 0 else None)

        def started_inside() -> proc.Started:
            namespace = os.open(f"/proc/{self._inside}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                kernel.enter_mounts(namespace)
            finally:
                os.close(namespace)
            return started()

        return kernel.in_thread(started_inside) if self._inside else started()

    def _wait(self, process: proc.Started, *, held: bool) -> None:
        if not held:
            process.wait()
            return
        while process.poll() is None:
            got = signal.sigtimedwait([*_PASSED_ON, signal.SIGCHLD], _AGAIN_S if self._given else _LOOK_S)
            self._meanwhile()
            if got is None and self._given:
                self._look_again()
            elif got is not None and got.si_signo != signal.SIGCHLD:
                self._pass_on(got.si_signo, process, seen=got.si_code == _SI_KERNEL)

    def _pass_on(self, number: int, process: proc.Started, *, seen: bool) -> None:
        """Give process 1 the signal; ``seen``: the terminal gave it to the runtime too, which passes it on."""
        pid = self._process_one(process)
        if not pid:
            return
        program = _program(pid)
        with contextlib.suppress(ProcessLookupError):
            if not _expects(pid, number):
                self._carry_out(pid, number)
            else:
                self._given = (pid, number, program)
                if not seen:
                    os.kill(pid, number)

    def _look_again(self) -> None:
        """A signal that reached a program in the moment of its exec was dropped with the program's handlers."""
        pid, number, program = self._given or (0, 0, "")
        self._given = None
        if _program(pid) != program and not _expects(pid, number):
            with contextlib.suppress(ProcessLookupError):
                self._carry_out(pid, number)

    def _carry_out(self, pid: int, number: int) -> None:
        self._fatal = number
        os.kill(pid, signal.SIGKILL)

    def _process_one(self, process: proc.Started) -> int:
        """Its id on the host, once the runtime has made it; 0 when the runtime ended before."""
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                return int(self._pid_file.read_text())
            time.sleep(_POLL_S)
        return 0


def _program(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def _expects(pid: int, number: int) -> bool:
    """Whether a process handles, ignores or blocks a signal: the masks of /proc/PID/status (proc(5))."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        masks = [int(lines[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")]
    except (OSError, KeyError, ValueError):
        return True
    return any(mask >> (number - 1) & 1 for mask in masks)


@contextlib.contextmanager
def _signals_held() -> Iterator[bool]:
    """Keep signals for ``sigtimedwait``; False in a thread other than the main one, where they are not ours."""
    blocked = {*_PASSED_ON, signal.SIGCHLD}

    def late(number: int, _frame: FrameType | None) -> None:
        # Another thread of this process took it: give it to the one that waits.
        import threading  # noqa: PLC0415  there are other threads: it is here already

        signal.pthread_kill(threading.main_thread().ident or 0, number)

    try:
        handlers = {number: signal.signal(number, late) for number in _PASSED_ON}
    except ValueError:  # not the main thread (signal.signal)
        yield False
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        yield True
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pumping(reader: int, first_output: Callable[[], None]) -> threading.Thread:
    import threading  # noqa: PLC0415  of a start that is measured

    pump = threading.Thread(target=_pump, args=(reader, first_output), name="stdout")
    pump.start()
    return pump


def _pump(reader: int, first_output: Callable[[], None]) -> None:
    """Copy everything to our stdout; when that is closed, so is the pipe, and the writer learns of it."""
    try:
        seen = False
        while data := os.read(reader, 1 << 16):
            if not seen:
                seen = True
                first_output()
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]
    except BrokenPipeError:
        pass
    finally:
        os.close(reader)
