"""Pieces of a tar compressed each for itself, by several threads, and written in order: same pieces, same bytes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from envbuilder.digest import Digest
from envbuilder.layer.tar import Writable

#: Bytes that wait to be compressed or written: some pieces for each thread.
_AHEAD = 64 << 20
#: Told where a piece begins and ends in what was written.
Placed = Callable[[int, int], None]


class PieceWriter:
    """Compresses what it is given with ``compress``, one frame or member a piece, into ``out``; a context manager.

    ``compress`` is called from any thread and lets go of the interpreter while it works.
    """

    def __init__(self, out: Writable, compress: Callable[[bytes], bytes], *, jobs: int) -> None:
        self._out, self._compress = out, compress
        self._pool = ThreadPoolExecutor(max(1, jobs), "flavour")
        self._waiting: deque[tuple[Future[bytes], int, Placed | None]] = deque()
        self._held = 0
        self._plain, self._stored = hashlib.sha256(), hashlib.sha256()
        self.size = 0

    def __enter__(self) -> PieceWriter:  # noqa: PYI034  # typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def add(self, piece: bytes, placed: Placed | None = None) -> None:
        """Write ``piece``; ``placed`` is called, from this thread, at a later ``add`` or at ``flush``."""
        if not piece:
            return
        self._plain.update(piece)
        self._waiting.append((self._pool.submit(self._compress, piece), len(piece), placed))
        self._held += len(piece)
        while self._held > _AHEAD:
            self._write_next()

    def flush(self) -> None:
        """Write all that waits."""
        while self._waiting:
            self._write_next()

    def write(self, stored: bytes) -> None:
        """Write bytes that are no piece of the tar, as they are."""
        self.flush()
        self._put(stored)

    def also_plain(self, data: bytes) -> None:
        """``data`` is what something unpacks to that was written with ``write``."""
        self._plain.update(data)

    def _write_next(self) -> None:
        future, size, placed = self._waiting.popleft()
        stored = future.result()
        self._held -= size
        begin = self.size
        self._put(stored)
        if placed is not None:
            placed(begin, self.size)

    def _put(self, stored: bytes) -> None:
        self._out.write(stored)
        self._stored.update(stored)
        self.size += len(stored)

    @property
    def diff_id(self) -> Digest:
        """Of all pieces: the tar."""
        return Digest("sha256:" + self._plain.hexdigest())

    @property
    def digest(self) -> Digest:
        """Of what was written."""
        return Digest("sha256:" + self._stored.hexdigest())
