"""An answer as http.client gives it: its head whole or an error, its body into a buffer of ours where we have one.

http.client takes the end of a connection for the end of the headers: a proxy that dies there would leave half a
Location or a shorter Content-Length, and no error. (CPython, ``http.client._read_headers``.)
"""

from __future__ import annotations

import http.client
from typing import Any, cast


class WholeHead(http.client.HTTPResponse):
    """An answer whose headers ended with their empty line.

    room: where the next ``read`` puts its bytes, to give a view of that in place of bytes of its own: urllib3 counts
    and hands on what is read, and would have each block in memory that is new.

    Raises:
        ConnectionResetError: from ``begin``, when the connection ended before.
    """

    room: memoryview | None = None

    def read(self, amt: int | None = None) -> bytes:
        room, self.room = self.room, None
        if room is None:
            return super().read(amt)
        return cast("bytes", room[: self.readinto(room[:amt])])

    def begin(self) -> None:
        inner = self.fp
        lines: Any = _Lines(inner)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = inner


class _Lines:
    """Lines of ``inner``; one that ends without a line break is an error, unless it is the first and empty."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._begun = inner, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def readline(self, size: int = -1) -> bytes:
        line: bytes = self._inner.readline(size)
        is_cut = not line.endswith(b"\n") and not 0 <= size <= len(line)  # an overlong line is http.client's to refuse
        if is_cut and (line or self._begun):
            raise ConnectionResetError("the connection ended in the headers")
        self._begun = True
        return line
