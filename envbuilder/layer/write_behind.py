"""What a blob is written to: it hashes what it is given, and may do so in a thread of its own.

Hashing a frame and copying it to the page cache need no interpreter, and are a tenth of the work on a large library.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Protocol, runtime_checkable

from envbuilder.digest import Digest
from envbuilder.layer.tar import Writable

#: Blocks that wait to be written: frames, which have 1 MiB at most.
_WAITING = 8


@runtime_checkable
class Hashing(Writable, Protocol):
    """A Writable that hashes what it is given, as a store's BlobWriter does: nobody need hash that again."""

    @property
    def digest(self) -> Digest:
        """Of all that was written so far."""


class Hashed:
    """A Hashing over any Writable."""

    def __init__(self, out: Writable) -> None:
        self._out, self._hash = out, hashlib.sha256()

    @property
    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())

    def write(self, data: bytes | memoryview, /) -> None:
        self._hash.update(data)
        self._out.write(data)


class WriteBehind:
    """A Writable that is written to ``out``, in order. Not thread-safe; ``close`` ends the thread.

    ``write`` raises what an earlier write raised, and so does ``digest``, which waits for all of them.
    """

    def __init__(self, out: Hashing) -> None:
        self._out = out
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._thread.start()

    def write(self, data: bytes | memoryview, /) -> None:
        """Take a copy of ``data``."""
        self._check()
        self._waiting.put(bytes(data))

    @property
    def digest(self) -> Digest:
        self._waiting.join()
        self._check()
        return self._out.digest

    def close(self) -> None:
        """Wait for what was taken, and end; again a no-op."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (data := self._waiting.get()) is not None:
            if self._error is None:
                self._write(data)
            self._waiting.task_done()

    def _write(self, data: bytes) -> None:
        try:
            self._out.write(data)
        except BaseException as error:  # noqa: BLE001  it is raised where the next block comes from
            self._error = error
