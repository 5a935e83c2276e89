"""The hot bundle of a trace, asked for by the process that looks the image up, before there is a mount.

That one has connections, and knows the digest first. What it gets goes into a pipe whose other end the streamer
gets (fetch/stream.py): a pipe is short, so that nothing is in the way of the image's metadata and little is fetched in
vain where the mount does not come about. When it ends early, however that comes, the streamer asks for the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from typing import cast

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.store.target import PartsTarget, RangeTarget

_log = logging.getLogger(__name__)

#: Bytes of the pipe, the most that a process may ask for (fs.pipe-max-size), and of what is written at a time.
_PIPE, _PART = 1 << 20, 128 << 10


class EarlyBundle:
    """A bundle on its way from ``source``; ``begin`` is called once at most."""

    def __init__(self, source: RangeTarget) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._reader, self._taken = -1, False

    def begin(self, hot: Descriptor) -> None:
        """Ask for ``hot``, if ``source`` can give it bit by bit."""
        if not isinstance(self._source, PartsTarget) or not hot.size:
            return
        with self._lock:
            if self._taken:
                return
            self._reader, writer = os.pipe()
        with contextlib.suppress(OSError):  # of a user who has many: a short one does
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE)
        threading.Thread(target=self._bring, args=(hot, writer), name="bundle", daemon=True).start()

    def take(self) -> int:
        """The end to read from, which is the caller's now; -1: nothing was begun, and nothing will be."""
        with self._lock:
            reader, self._reader, self._taken = self._reader, -1, True
        return reader

    def _bring(self, hot: Descriptor, writer: int) -> None:
        sizes = [min(_PART, hot.size - at) for at in range(0, hot.size, _PART)]
        try:
            for part in cast("PartsTarget", self._source).fetch_parts(hot, 0, sizes):
                view = memoryview(part)
                while view:
                    view = view[os.write(writer, view) :]
        except (EnvbuilderError, OSError) as error:
            _log.debug("%s: hot bundle: left to the streamer: %s", self._source.name, error)
        finally:
            os.close(writer)
