"""Where the files of a tar lie, found without unpacking it; the tar may come from anyone.

Reads plain tar of any flavour (ustar, PAX, GNU) by position. Nothing is created on disk and
only names that the caller wants are kept, so links, devices and '..' have nothing to act on.
"""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from typing import Any

from envbuilder.errors import IntegrityError

_BLOCK = 512
#: Headers in one archive, and bytes of one header extension: far above any image, far below any harm.
_MAX_MEMBERS = 200_000
_MAX_EXTENSION = 1 << 20
_REGULAR = (b"0", b"\0", b"7")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"BZ": "bzip2", b"\xfd7": "xz"}


class BadArchive(IntegrityError):
    """A file that should be a tar is none, is cut off, or is built to hurt."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a file's bytes are in an archive."""

    offset: int
    size: int


class ExtentReader(io.RawIOBase):
    """The bytes of one extent of the file ``fd`` as a stream; holds the archive ``of``, whose file must stay open."""

    def __init__(self, of: object, fd: int, extent: Extent) -> None:
        super().__init__()
        self._of, self._fd = of, fd
        self._position, self._end = extent.offset, extent.offset + extent.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = os.pread(self._fd, min(len(buffer), self._end - self._position), self._position)
        self._position += len(data)
        buffer[: len(data)] = data
        return len(data)


def scan(fd: int, wanted: re.Pattern[str], *, source: str) -> dict[str, Extent]:
    """The extents of regular files whose name (without a leading './') matches ``wanted``; the last of a name counts.

    Raises:
        BadArchive: not a plain tar, truncated, or over a cap.
    """
    end = os.fstat(fd).st_size
    found: dict[str, Extent] = {}
    position = members = 0
    name_override: str | None = None
    size_override: int | None = None
    while position + _BLOCK <= end:
        header = os.pread(fd, _BLOCK, position)
        if not header.strip(b"\0"):
            break
        members += 1
        _check(header, position, members, source)
        size = size_override if size_override is not None else _number(header[124:136], source)
        kind, data_at = header[156:157], position + _BLOCK
        if data_at + size > end:
            raise BadArchive(f"{source}: cut off: an entry at {position} wants {size} bytes, {end - data_at} are left")
        position = data_at + (size + _BLOCK - 1) // _BLOCK * _BLOCK
        if kind in (b"x", b"L"):
            if size > _MAX_EXTENSION:
                raise BadArchive(f"{source}: want a header extension of at most {_MAX_EXTENSION} bytes, got {size}")
            data = os.pread(fd, size, data_at)
            if kind == b"L":
                name_override = data.rstrip(b"\0").decode("utf-8", "replace")
            else:
                name_override, size_override = _pax(data, name_override, source)
            continue
        name = name_override if name_override is not None else _name(header)
        name_override = size_override = None
        if kind in _REGULAR and wanted.fullmatch(name := name.removeprefix("./")):
            found[name] = Extent(data_at, size)
    if not members:
        raise BadArchive(f"{source}: want a tar, got {end} bytes of something else")
    return found


def _check(header: bytes, position: int, members: int, source: str) -> None:
    if members > _MAX_MEMBERS:
        raise BadArchive(f"{source}: want at most {_MAX_MEMBERS} entries, got more")
    total = sum(header[:148]) + 8 * 32 + sum(header[156:])
    try:
        right = int(header[148:156].strip(b"\0 ") or b"-1", 8) == total
    except ValueError:
        right = False
    if not right:
        packed = _COMPRESSED.get(header[:2], "") if position == 0 else ""
        what = f"a {packed} file" if packed else f"no tar header at byte {position}"
        raise BadArchive(f"{source}: want a plain tar, got {what}", hint="Uncompress it first." if packed else "")


def _number(field: bytes, source: str) -> int:
    """A size field: octal, or base 256 when the first bit is set (GNU)."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        raise BadArchive(f"{source}: want a size, got {field!r}") from None


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


def _pax(data: bytes, name: str | None, source: str) -> tuple[str | None, int | None]:
    """Path and size of PAX records, ``LENGTH KEY=VALUE`` and a newline (POSIX pax, "Extended Header")."""
    size: int | None = None
    while data:
        length_text, _, rest = data.partition(b" ")
        length = int(length_text) if length_text.isdigit() and len(length_text) < 10 else 0
        if not len(length_text) + 1 < length <= len(data):
            raise BadArchive(f"{source}: a PAX record has no length")
        key, _, value = rest[: length - len(length_text) - 2].partition(b"=")
        if key == b"path":
            name = value.decode("utf-8", "replace")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise BadArchive(f"{source}: want a PAX size, got {value[:30]!r}")
            size = int(value)
        data = data[length:]
    return name, size
