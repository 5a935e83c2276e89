"""An answer as http.client gives it: its head whole or an error, its body into a buffer of ours where we have one.

http.client takes the end of a connection for the end of the headers: a proxy that dies there would leave half a
Location or a shorter Content-Length, and no error. (CPython, ``http.client._read_headers``.) Nor does it bound what
stands around a body: interim answers, trailers, a line that comes a byte at a time; and of a chunk of ``-1`` bytes it
reads all there is into memory.
"""

from __future__ import annotations

import http.client
import time
from typing import Any, cast

#: Seconds from the first byte of a head, or of a line within a body, to its last.
_HEAD_TIMEOUT_S = 120.0
#: Answers of 100 ("Continue") before the real one, and lines behind a chunked body.
_MAX_INTERIM, _MAX_TRAILERS = 10, 100
#: Characters of a line: http.client's own limit.
_MAX_LINE = 64 << 10


class WholeHead(http.client.HTTPResponse):
    """An answer whose headers ended with their empty line.

    room: where the next ``read`` puts its bytes, to give a view of that in place of bytes of its own: urllib3 counts
    and hands on what is read, and would have each block in memory that is new.

    Raises:
        ConnectionResetError: from ``begin``, when the connection ended before. TimeoutError: a line drips.
    """

    room: memoryview | None = None

    def read(self, amt: int | None = None) -> bytes:
        room, self.room = self.room, None
        if room is None:
            return super().read(amt)
        return cast("bytes", room[: self.readinto(room[:amt])])

    def begin(self) -> None:
        inner = self.fp
        lines: Any = _Lines(inner, whole=True)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = inner

    def _read_next_chunk_size(self) -> int:
        """http.client asks for it before each chunk; it takes a ValueError for a body that broke off."""
        word = _Lines(self.fp).readline(_MAX_LINE).partition(b";")[0].strip()
        if not word.isalnum():  # "-1" would be all there is
            self._close_conn()  # type: ignore[attr-defined]  # http.client's own
            raise ValueError(f"not the size of a chunk: {word[:20]!r}")
        return int(word, 16)

    def _read_and_discard_trailer(self) -> None:
        lines = _Lines(self.fp)
        for _ in range(_MAX_TRAILERS):
            if lines.readline(_MAX_LINE) in (b"", b"\r\n", b"\n"):
                return
        raise http.client.HTTPException(f"more than {_MAX_TRAILERS} lines behind the body")


class _Lines:
    """Lines of ``inner``, each there within the time for a head.

    whole: one that ends without a line break is an error, unless it is the first and empty.
    """

    def __init__(self, inner: Any, *, whole: bool = False) -> None:
        self._inner, self._whole = inner, whole
        self._begun, self._heads, self._until_s = False, 0, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def readline(self, size: int = -1) -> bytes:
        line = self._line(size if size >= 0 else _MAX_LINE)
        is_cut = not line.endswith(b"\n") and not 0 <= size <= len(line)  # an overlong line is http.client's to refuse
        if self._whole and is_cut and (line or self._begun):
            raise ConnectionResetError("the connection ended in the headers")
        self._begun = True
        if line in (b"\r\n", b"\n"):
            # The next head may come much later: an upload is moved into storage meanwhile.
            self._until_s, self._heads = 0.0, self._heads + 1
            if self._heads > _MAX_INTERIM:
                raise ConnectionResetError(f"more than {_MAX_INTERIM} answers that are none")
        return line

    def _line(self, most: int) -> bytes:
        line = b""
        while len(line) < most and not line.endswith(b"\n"):
            # A read of its own waits for the whole line, however long each byte takes.
            there = len(self._inner.peek(1))
            now = time.monotonic()
            self._until_s = self._until_s or now + _HEAD_TIMEOUT_S
            if not there:
                break
            if now > self._until_s:
                raise TimeoutError("the head or a line of it drips")
            line += self._inner.readline(min(there, most - len(line)))
        return line
