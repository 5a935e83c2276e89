"""How a process goes on behind the one that started it: its streams, its folder, the signals that end it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"
#: What asks a process to end.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: The out-of-memory killer takes others first: without us the job reads EIO.
_OOM_SCORE = "-500"


@contextmanager
def signals(*numbers: signal.Signals) -> Iterator[int]:
    """A descriptor that gives the number, a byte, of each of these signals that we get; they do nothing else."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        os.close(reader)
        os.close(writer)


def log_to(file: Path) -> None:
    """Let go of the caller's streams and working directory: a pipe of its would stay open, its folder busy."""
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    for descriptor, stream in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, stream)
    os.close(log)
    os.close(nothing)
    os.chdir("/")
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)


def spare_memory_killer() -> None:
    """Outlive the out-of-memory killer's first choice; children inherit it. Not root: it stays as it is."""
    try:
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    except OSError as error:
        _log.debug("oom_score_adj: %s", error)
