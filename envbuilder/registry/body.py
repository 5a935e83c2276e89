"""What is sent of a blob: its bytes, whole or from an offset on, opened anew for each attempt.

They are verified here, or, where they lie in a file and the registry compares the digest, left to the system to send.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from envbuilder.digest import BLOCK_SIZE, Descriptor, verifying
from envbuilder.store.target import FileStream, Opener, Span


class Body:
    """The content as a verified body; remembers an error of its own, which no new upload would mend.

    trusted: the registry compares the digest itself: what lies in a file is sent as it is.
    Not thread-safe: one upload reads it. Close it when the upload ends.
    """

    def __init__(self, content: Opener, what: Descriptor) -> None:
        self._content, self._what = content, what
        self._stream: BinaryIO | None = None
        self._position = 0
        self.failure: Exception | None = None
        self.trusted = False

    def whole(self) -> BinaryIO:
        """All of it, from the start."""
        return self.part(0, self._what.size)

    def part(self, offset: int, size: int) -> BinaryIO:
        """``size`` bytes from ``offset`` on.

        A part that follows the one before goes on with the same stream; else the source is opened anew and its
        bytes up to ``offset`` are read past, so what is sent is verified however often it broke off. Of a file that
        is sent as it is nothing is read.
        """
        with self.noted():
            if self._stream is None or self._position != offset or not offset:
                self.close()
                self._stream = verifying(self._content(), self._what, source=f"upload of {self._what.digest}")
                self._position = 0
            if self.trusted and size and isinstance(self._stream, FileStream):
                spans = self._stream.spans(offset, size)
                if spans is not None:
                    self._position = offset + size
                    return cast("BinaryIO", FilePart(self, spans))
            while self._position < offset:
                self._position += len(self._stream.read(min(BLOCK_SIZE, offset - self._position)))
            if not self._what.size:
                # An empty body is never read by the HTTP library, so nothing would check that it is empty.
                self._stream.read()
        return cast("BinaryIO", _Part(self, size))

    def read(self, size: int) -> bytes:
        """The next bytes of the part that is open."""
        with self.noted():
            if self._stream is None:
                return b""
            data = self._stream.read(size)
            self._position += len(data)
            return data

    def close(self) -> None:
        """Close the source; a later part opens it anew."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Remember an error of the content."""
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


class FilePart:
    """A part that lies in a file, for a connection that has the system send it."""

    def __init__(self, body: Body, spans: Iterator[Span]) -> None:
        self._body, self._spans = body, spans

    def __iter__(self) -> Iterator[Span]:
        with self._body.noted():
            yield from self._spans

    def close(self) -> None:
        """The body closes its stream, which the next part may go on with."""


class _Part(io.RawIOBase):
    def __init__(self, body: Body, size: int) -> None:
        super().__init__()
        self._body, self._left = body, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._body.read(self._left if size < 0 else min(size, self._left)) if self._left else b""
        self._left -= len(data)
        return data
