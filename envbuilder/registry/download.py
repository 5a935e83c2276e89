"""A blob on its way here: taken up where it broke off."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from envbuilder.digest import Descriptor
from envbuilder.registry.answer import Answer
from envbuilder.registry.errors import BadAnswer, RegistryDown
from envbuilder.registry.redact import plain

_log = logging.getLogger("envbuilder.registry")
#: Times in a row that a download may break without giving a byte before we stop resuming it.
_MAX_FRUITLESS = 4
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)\Z")
_Taken = TypeVar("_Taken", bytes, int)


class Resumable(Protocol):
    """What gives the rest of a blob."""

    def resume(self, what: Descriptor, offset: int) -> Answer:
        """The bytes from ``offset`` on, as the body of an answer of 206; else all of them."""


class Download(io.RawIOBase):
    """The body of a blob that is taken up where it broke off; what comes out is not verified yet."""

    def __init__(self, target: Resumable, what: Descriptor, answer: Answer) -> None:
        super().__init__()
        self._target, self._what = target, what
        self._answer = answer
        self._position = 0
        self._ahead = 0  # bytes before our position that an answer with the whole blob begins with
        self._fruitless = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._next(lambda answer: answer.read(size), len)

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer)
        return self._next(lambda answer: answer.readinto(room), int)

    def _next(self, take: Callable[[Answer], _Taken], size_of: Callable[[_Taken], int]) -> _Taken:
        while True:
            try:
                skip(self._answer, self._ahead)
                self._ahead = 0
                taken = take(self._answer)
            except RegistryDown as error:
                self._fruitless += 1
                if self._fruitless >= _MAX_FRUITLESS or self._position >= self._what.size:
                    raise
                _log.debug("%s; going on at byte %d", error, self._position)
                self._answer = self._target.resume(self._what, self._position)
                self._ahead = 0 if self._answer.status == 206 else self._position  # HTTP
                continue
            if size := size_of(taken):
                self._fruitless = 0
                self._position += size
            return taken

    def close(self) -> None:
        if not self.closed:
            self._answer.finish()
        super().close()


def skip(answer: Answer, count: int) -> None:
    """Read and drop ``count`` bytes, or all there are."""
    while count > 0 and (block := answer.read(min(count, 1 << 20))):
        count -= len(block)


def check_range(answer: Answer, what: Descriptor, offset: int, size: int) -> None:
    """Refuse a 206 that is not about bytes ``offset`` to ``offset + size`` of ``what``.

    Raises:
        BadAnswer: another range or another size of the whole.
    """
    text = answer.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.match(text)
    right = match and int(match[1]) == offset and int(match[2]) == offset + size - 1
    if not match or not right or match[3] not in ("*", str(what.size)):
        answer.close()
        wanted = f"{offset}-{offset + size - 1}/{what.size}"
        raise BadAnswer(f"{answer.where}: want Content-Range bytes {wanted}, got {plain(text, 80)!r}")
