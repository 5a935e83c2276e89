"""The ``envbuilder`` command: what every call of it does before the verb is even imported."""

from __future__ import annotations

import gc
import os
import signal
import sys

from envbuilder.cli.warm import started_as_decided


class _Ended(BaseException):
    """Somebody wants us to end: what was begun is cleared away on the way out, as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.status = 128 + number


def _end(number: int, _frame: object) -> None:
    raise _Ended(number)


def main() -> None:
    """Run the command line and exit with its status (verbs.py)."""
    _open_streams()
    # Modules make no rubbish; to look for it took a tenth of a short command. verbs.py turns it on again.
    gc.disable()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup ignores a signal for us: it stays so.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        status = started_as_decided(sys.argv[1:], os.environ)
        if status is None:
            # Takes longer to import than a container to start.
            from envbuilder.cli.verbs import call  # noqa: PLC0415  see above

            status = call()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except _Ended as ended:
        sys.exit(ended.status)
    sys.exit(status)


def _open_streams() -> None:
    """Give every closed standard stream /dev/null: else the next file that we open would be taken for it."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # It gets the lowest free descriptor; what we start shall have it too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - lives as long as we do
