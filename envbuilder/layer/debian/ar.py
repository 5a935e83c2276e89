"""The outer shell of a .deb: an ``ar`` archive of three members.

Source: deb(5), "FORMAT".
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from envbuilder.errors import IntegrityError

_MAGIC = b"!<arch>\n"
_HEADER_SIZE = 60
#: Members looked at; a .deb has three and may carry a few signatures.
_MAX_MEMBERS = 16


class BadDeb(IntegrityError):
    """A .deb is truncated, malformed, over a limit, or uses what dpkg itself does not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of an ar archive: where its bytes lie in the file."""

    name: str
    offset: int
    size: int


def members(file: BinaryIO, *, source: str) -> Iterator[Member]:
    """The members of the seekable ``file`` in order.

    Raises:
        BadDeb: no ar archive, or a member is cut off.
    """
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    if file.read(len(_MAGIC)) != _MAGIC:
        raise BadDeb(f"{source}: not a .deb: want an ar archive")
    offset = len(_MAGIC)
    for _ in range(_MAX_MEMBERS):
        if offset >= end:
            return
        file.seek(offset)
        header = file.read(_HEADER_SIZE)
        digits = header[48:58].strip()
        if len(header) != _HEADER_SIZE or header[58:] != b"`\n" or not digits.isdigit():
            raise BadDeb(f"{source}: ar member at byte {offset}: malformed header")
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        size = int(digits)
        offset += _HEADER_SIZE
        if offset + size > end:
            raise BadDeb(f"{source}: ar member {name!r}: want {size} bytes, got {end - offset}")
        yield Member(name=name, offset=offset, size=size)
        offset += size + size % 2
    raise BadDeb(f"{source}: more than {_MAX_MEMBERS} ar members")


class Window(io.RawIOBase):
    """The bytes of one member of ``file`` as a stream; moves the position of ``file``."""

    def __init__(self, file: BinaryIO, member: Member) -> None:
        super().__init__()
        self._file, self._at, self._end = file, member.offset, member.offset + member.size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        left = self._end - self._at
        self._file.seek(self._at)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data
