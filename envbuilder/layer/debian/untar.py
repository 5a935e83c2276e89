"""Read the tar subset that dpkg accepts, as a stream, within limits.

v7, ustar and GNU long names; no PAX headers, no sparse files: dpkg refuses them too (deb(5)).
Python's tarfile is no choice here: it buffers extension headers of any size.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from envbuilder.digest import BLOCK_SIZE, Readable
from envbuilder.layer.debian.ar import BadDeb

_BLOCK = 512
_OCTAL = re.compile(rb"[0-7]+\Z")
#: Bytes of a GNU long name: PATH_MAX.
_MAX_NAME = 4096
#: Entries of one archive; the largest Debian packages have some 100,000.
_MAX_ENTRIES = 1_000_000
_TYPES = {
    b"0": stat.S_IFREG,
    b"\0": stat.S_IFREG,
    b"7": stat.S_IFREG,
    b"1": stat.S_IFREG,
    b"2": stat.S_IFLNK,
    b"3": stat.S_IFCHR,
    b"4": stat.S_IFBLK,
    b"5": stat.S_IFDIR,
    b"6": stat.S_IFIFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One header: names as they stand in the archive, still hostile.

    mode: st_mode with type. size: bytes of data that follow. hard_link: ``link`` names another member.
    """

    name: str
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    link: str = ""
    hard_link: bool = False
    device: tuple[int, int] = (0, 0)


class _Blocks:
    """Exact reads from the decompressed stream, counted against a limit."""

    def __init__(self, stream: Readable, limit: int, source: str) -> None:
        self._stream, self._left, self.source = stream, limit, source

    def take(self, size: int) -> bytes:
        """``size`` bytes; fewer only at the very end of the stream."""
        self._left -= size
        if self._left < 0:
            raise BadDeb(f"{self.source}: unpacks to more than its limit")
        parts, want = [], size
        while want and (part := self._stream.read(want)):
            parts.append(part)
            want -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def exactly(self, size: int, what: str) -> bytes:
        data = self.take(size)
        if len(data) != size:
            raise BadDeb(f"{self.source}: truncated: {what}: want {size} bytes, got {len(data)}")
        return data


class Data:
    """The data of the member just yielded; what is left unread is skipped."""

    def __init__(self, blocks: _Blocks, size: int) -> None:
        self._blocks, self._left = blocks, size

    def read(self, size: int = -1, /) -> bytes:
        """Up to ``size`` bytes, all that is left when negative; b"" at the end."""
        want = self._left if size < 0 else min(size, self._left)
        data = self._blocks.exactly(want, "data") if want else b""
        self._left -= want
        return data

    def skip(self) -> None:
        """Read to the end."""
        while self.read(BLOCK_SIZE):
            pass


def read_tar(stream: Readable, *, limit: int, source: str) -> Iterator[tuple[TarMember, Data]]:
    """Every member with its data, in archive order; read ``data`` before asking for the next.

    limit: bytes that the archive may unpack to.

    Raises:
        BadDeb: truncated, a wrong checksum, a type dpkg does not know, or over the limit.
    """
    blocks = _Blocks(stream, limit, source)
    long_name = long_link = ""
    for _ in range(_MAX_ENTRIES):
        header = blocks.take(_BLOCK)
        if header == bytes(_BLOCK):
            return  # without it the stream was cut off: not every decompressor says so
        if len(header) != _BLOCK:
            raise BadDeb(f"{source}: truncated: a tar header of {len(header)} bytes")
        kind = header[156:157]
        size = _number(header[124:136], source)
        _check_sum(header, source)
        if kind in (b"L", b"K"):
            if size > _MAX_NAME:
                raise BadDeb(f"{source}: a name of {size} bytes")
            name = _text(blocks.exactly(size + -size % _BLOCK, "long name")[:size])
            long_name, long_link = (name, long_link) if kind == b"L" else (long_name, name)
            continue
        member = _member(header, kind, size, source, name=long_name, link=long_link)
        long_name = long_link = ""
        data = Data(blocks, member.size)
        yield member, data
        data.skip()
        blocks.exactly(-member.size % _BLOCK, "padding")
    raise BadDeb(f"{source}: more than {_MAX_ENTRIES} entries")


def _member(header: bytes, kind: bytes, size: int, source: str, *, name: str, link: str) -> TarMember:
    """The member of ``header``; ``name`` and ``link`` are those of GNU entries before it, or ""."""
    if not name:
        name = _text(header[:100])
        if header[257:263] == b"ustar\0" and header[345:346] != b"\0":
            name = _text(header[345:500]) + "/" + name
    type_bits = _TYPES.get(kind)
    if type_bits is None:
        raise BadDeb(f"{source}: {name[:200]!r}: tar type {kind!r}, which dpkg does not accept")
    if kind in (b"0", b"\0") and name.endswith("/"):
        type_bits = stat.S_IFDIR  # v7 had no type for directories
    is_data = type_bits == stat.S_IFREG and kind != b"1"
    return TarMember(
        name=name,
        mode=type_bits | (_number(header[100:108], source) & 0o7777),
        uid=_number(header[108:116], source),
        gid=_number(header[116:124], source),
        size=size if is_data else 0,
        link=(link or _text(header[157:257])) if kind in (b"1", b"2") else "",
        hard_link=kind == b"1",
        device=(_number(header[329:337], source), _number(header[337:345], source)) if kind in (b"3", b"4") else (0, 0),
    )


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _number(field: bytes, source: str) -> int:
    """Octal digits, or GNU's base 256 when the first bit is set."""
    if field[:1] >= b"\x80":
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 2)) - 1)
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if not _OCTAL.match(digits):  # int() would take signs, underscores and a prefix too
        raise BadDeb(f"{source}: not an octal number in a tar header: {field!r}")
    return int(digits, 8)


def _check_sum(header: bytes, source: str) -> None:
    if sum(header[:148]) + 8 * 32 + sum(header[156:]) != _number(header[148:156], source):
        raise BadDeb(f"{source}: wrong checksum of a tar header")
