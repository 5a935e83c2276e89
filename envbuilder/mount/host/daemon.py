"""How a process goes on behind the one that started it: its streams, its folder, the signals that end it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(message)s"


def end_signals() -> int:
    """A descriptor that becomes readable when we are asked to end."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reader


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
