"""Header blocks of the canonical tar: ustar, with pax records where ustar cannot say it.

Source: POSIX.1-2001 pax, "ustar Interchange Format" and "pax Extended Header"; xattrs as
``SCHILY.xattr.<name>``, which GNU tar, Go's archive/tar and libarchive read.
"""

from __future__ import annotations

import stat
from functools import lru_cache

from envbuilder.errors import SpecError
from envbuilder.layer.tree import SOURCE_EPOCH_S, Entry

#: Bytes to which file data and the whole tar are aligned: a page, and the largest EROFS block.
ALIGNMENT = 4096
#: Bytes of a tar block (ustar).
BLOCK = 512
#: Bytes of a ustar name field; what does not fit goes into a pax record.
_NAME_SIZE = 100
#: First size and first id that the octal fields of ustar cannot hold.
_SIZE_LIMIT, _ID_LIMIT = 8**11, 8**7

_TYPES = {
    stat.S_IFREG: b"0",
    stat.S_IFLNK: b"2",
    stat.S_IFCHR: b"3",
    stat.S_IFBLK: b"4",
    stat.S_IFDIR: b"5",
    stat.S_IFIFO: b"6",
}
_HARD_LINK = b"1"


class BrokenEntry(SpecError):
    """An entry is nothing that a tar can hold: a socket, or a hard link to nothing."""


def encode(text: str) -> bytes:
    """A path as the bytes that Linux sees; the order of tars and directories is the order of these."""
    return text.encode("utf-8", "surrogateescape")


def header(path: str, entry: Entry, at: int, *, hard_link: str = "") -> bytes:
    """The header blocks of ``entry`` at tar offset ``at``, so long that its data, if any, is aligned.

    hard_link: the path that has the data, if this entry is but another name of it.

    Raises:
        BrokenEntry: the mode's type is none that a tar can hold.
    """
    kind = _HARD_LINK if hard_link else _TYPES.get(stat.S_IFMT(entry.mode), b"")
    if not kind:
        raise BrokenEntry(f"tar: {path!r} has mode {entry.mode:o}, which no tar can hold")
    name, target = encode(path), encode(hard_link or (entry.link if entry.is_symlink else ""))
    if kind == b"5":
        name += b"/"
    size = entry.size if kind == b"0" else 0
    records = b""
    if len(name) > _NAME_SIZE or not name.isascii():
        records += _record("path", name)
    if len(target) > _NAME_SIZE or not target.isascii():
        records += _record("linkpath", target)
    if size >= _SIZE_LIMIT:
        records += _record("size", b"%d" % size)
    if entry.uid >= _ID_LIMIT:
        records += _record("uid", b"%d" % entry.uid)
    if entry.gid >= _ID_LIMIT:
        records += _record("gid", b"%d" % entry.gid)
    for key, value in entry.xattrs if kind != _HARD_LINK else ():
        if "=" in key:
            raise BrokenEntry(f"tar: {path!r} has an extended attribute {key!r}, which no pax record can name")
        records += _record("SCHILY.xattr." + key, value)
    if records and not (_is_text(name) and _is_text(target)):
        records = _record("hdrcharset", b"BINARY") + records
    block = _ustar(
        name[:_NAME_SIZE],
        stat.S_IMODE(entry.mode),
        entry.uid if entry.uid < _ID_LIMIT else 0,
        entry.gid if entry.gid < _ID_LIMIT else 0,
        size if size < _SIZE_LIMIT else 0,
        kind,
        target[:_NAME_SIZE],
        entry.device if kind in b"34" else (0, 0),
    )
    return _pax(records, at if size else None) + block


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _pax(records: bytes, at: int | None) -> bytes:
    """An extended header for ``records``; with ``at`` it is as long as the alignment of the data asks.

    The padding is a ``comment`` record, which every reader must ignore (POSIX pax, "comment").
    """
    if not records and (at is None or (at + BLOCK) % ALIGNMENT == 0):
        return b""
    if at is None:
        size = len(records) + -len(records) % BLOCK
    else:
        size = -(at + 2 * BLOCK) % ALIGNMENT or ALIGNMENT
        while size < len(records):
            size += ALIGNMENT
        if size - len(records) >= BLOCK:
            records += _comment(size - len(records))
    return _pax_header(len(records)) + records.ljust(size, b"\0")


@lru_cache(maxsize=64)
def _pax_header(size: int) -> bytes:
    return _ustar(b"././@PaxHeader", 0o644, 0, 0, size, b"x", b"", (0, 0))


def _record(key: str, value: bytes) -> bytes:
    """A pax record, which begins with its own length in decimal digits."""
    body = b" " + encode(key) + b"=" + value + b"\n"
    size = len(body) + 1
    while len(b"%d" % size) + len(body) != size:
        size += 1
    return b"%d" % size + body


def _comment(size: int) -> bytes:
    """A ``comment`` record of exactly ``size`` bytes."""
    digits = b"%d" % size
    return digits + b" comment=" + b" " * (size - len(digits) - 10) + b"\n"


def _ustar(
    name: bytes, mode: int, uid: int, gid: int, size: int, kind: bytes, link: bytes, device: tuple[int, int]
) -> bytes:
    before = b"%s%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, uid, gid, size, SOURCE_EPOCH_S)
    after = b"%s%sustar\x0000%s%07o\0%07o\0" % (kind, link.ljust(100, b"\0"), bytes(64), *device)
    # The checksum counts its own field as eight spaces (ustar, "chksum").
    total = sum(before) + 8 * 0x20 + sum(after)
    return b"%s%06o\0 %s%s" % (before, total, after, bytes(167))
