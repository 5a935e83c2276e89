"""Answer: status, headers and the unread body of one HTTP answer, with a cap on every read."""

from __future__ import annotations

import time
from collections.abc import Mapping

import urllib3
from urllib3.exceptions import HTTPError

from envbuilder.digest import BLOCK_SIZE
from envbuilder.registry.contact import innermost
from envbuilder.registry.errors import BadAnswer, RegistryDown
from envbuilder.registry.head import WholeHead
from envbuilder.registry.redact import plain, redact_url

#: Bytes of an unread answer that are cheaper to read than a new connection.
_DRAIN_SIZE = 64 << 10
#: Seconds that a token, an error or a manifest may take once its headers are here.
_DOCUMENT_TIMEOUT_S = 120.0
#: Bytes a second of a part of a blob that are as good as none: a chunk of them would take longer than readers wait.
_LEAST_RATE = 512


class TooSlow(RegistryDown):
    """A document did not come whole in time, although it kept coming: nobody waits that long again."""


class Answer:
    """Status, headers and the unread body of one answer. Close it or read it to its end, else a connection is lost.

    Not thread-safe. Raises RegistryDown from reads when the connection breaks.
    """

    def __init__(self, inner: urllib3.response.BaseHTTPResponse, url: str, *, idle_timeout_s: float = 60.0) -> None:
        self._inner, self.url, self._idle_timeout_s = inner, url, idle_timeout_s
        self.status: int = inner.status
        self.headers: Mapping[str, str] = inner.headers

    @property
    def where(self) -> str:
        """The URL as messages may show it."""
        return redact_url(self.url)

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes; fewer only at the end."""
        try:
            return self._inner.read(None if size < 0 else size)
        except (HTTPError, OSError) as error:
            self.close()
            raise RegistryDown(f"{self.where}: connection broke: {reason_of(error)}") from error

    def readinto(self, room: memoryview, /) -> int:
        """As ``read``, but into ``room``: straight from the connection, if it is one of ours."""
        body = getattr(self._inner, "_fp", None)  # urllib3's own readinto reads, and copies
        if not isinstance(body, WholeHead):
            data = self.read(len(room))
            room[: len(data)] = data
            return len(data)
        body.room = room
        try:
            return len(self.read(len(room)))
        finally:
            body.room = None

    def read_all(self, limit: int) -> bytes:
        """The whole body.

        Raises:
            BadAnswer: it has more than ``limit`` bytes.
        """
        data = self._gather(limit + 1)
        if len(data) > limit:
            self.close()
            raise BadAnswer(f"{self.where}: want a body of at most {limit} bytes, got more")
        self._inner.release_conn()
        return data

    def read_start(self, limit: int) -> bytes:
        """At most the first ``limit`` bytes; the rest is dropped with the connection. Never fails."""
        try:
            data = self._gather(limit)
        except RegistryDown:
            return b""
        if len(data) == limit:
            self.close()
        else:
            self._inner.release_conn()
        return data

    def read_exactly(self, size: int) -> bytes:
        """The next ``size`` bytes, fewer if the body ends before.

        Raises:
            RegistryDown: it trickles: within the idle timeout came next to nothing.
        """
        parts: list[bytes] = []
        have, seen, at_s = 0, 0, time.monotonic()
        while have < size and (block := self._some(min(BLOCK_SIZE, size - have))):
            parts.append(block)
            have += len(block)
            if (passed_s := time.monotonic() - at_s) > self._idle_timeout_s:
                if have - seen < _LEAST_RATE * passed_s:
                    self.close()
                    raise RegistryDown(f"{self.where}: {have - seen} bytes in {passed_s:.0f} s: as good as no answer")
                seen, at_s = have, at_s + passed_s
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, size: int) -> bytes:
        """What has come, at most ``size`` bytes; none only at the end."""
        try:
            return self._inner.read1(size)
        except (HTTPError, OSError) as error:
            self.close()
            raise RegistryDown(f"{self.where}: connection broke: {reason_of(error)}") from error

    def finish(self) -> None:
        """Give the connection back if little is left to read, else close it."""
        left = self._inner.length_remaining if isinstance(self._inner, urllib3.HTTPResponse) else None
        if left is not None and left <= _DRAIN_SIZE:
            try:
                self._inner.drain_conn()
            except (HTTPError, OSError):
                self._inner.close()
            self._inner.release_conn()
        else:
            self.close()

    def close(self) -> None:
        """Drop the body and the connection."""
        self._inner.close()
        self._inner.release_conn()

    def _gather(self, limit: int) -> bytes:
        """Up to ``limit`` bytes as they come: a server that drips must not hold us longer than the deadline."""
        parts, have = [], 0
        deadline = time.monotonic() + _DOCUMENT_TIMEOUT_S
        while have < limit:
            block = self._some(min(BLOCK_SIZE, limit - have))
            if not block:
                break
            parts.append(block)
            have += len(block)
            if time.monotonic() > deadline:
                self.close()
                raise TooSlow(f"{self.where}: no whole answer within {_DOCUMENT_TIMEOUT_S:.0f} s")
        return b"".join(parts)


def reason_of(error: BaseException) -> str:
    """The innermost reason in one line: urllib3's own texts hold object addresses."""
    error = innermost(error)
    return plain(str(error) or type(error).__name__, 200)
