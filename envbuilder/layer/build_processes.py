"""Processes that make layers beside this one; they end with it, however it ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.util import Finalize

from envbuilder.layer.compile_server import close_idle
from envbuilder.store.layout import LayoutTarget

#: Seconds that a program may take to run which a stopped process was just starting: until then it holds that process's
#: files, and so their locks (fork(2), flock(2)), and what was begun looks as if somebody wrote it.
_STARTING_S = 0.5


@contextmanager
def builders(jobs: int, store: LayoutTarget) -> Iterator[ProcessPoolExecutor]:
    """Up to ``jobs`` processes. What they had begun in ``store`` when we give up is gone."""
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_process)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  no public way to stop running work
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        end_s = time.monotonic() + _STARTING_S
        while not store.clear_away() and time.monotonic() < end_s:
            time.sleep(0.02)
        raise
    pool.shutdown()


@contextmanager
def without_collector() -> Iterator[None]:
    """Let the cycle collector rest: it would walk 100,000 paths again and again, a third of the time of what is
    not compression, and finds nothing. What is there at the end it never walks: that alone took 0.1 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


def _end_with_parent() -> None:
    # A killed parent tells nobody: its processes would wait for work for ever, both ends of the queue in their hands.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _end() -> None:
    close_idle()
    if sys.exc_info()[0] is not None:
        return  # what went wrong is told behind us
    sys.stdout.flush()
    sys.stderr.flush()
    # To take this interpreter down, object by object, takes 0.05 s, for which the parent would wait.
    os._exit(0)


def _begin_process() -> None:
    # Ctrl-C reaches the whole process group: the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    Finalize(None, _end, exitpriority=-100)  # what multiprocessing itself has to end comes before
    # A layer is up to 100,000 small objects that live to its end: the collector would walk them again and again,
    # and finds no cycle.
    gc.disable()
