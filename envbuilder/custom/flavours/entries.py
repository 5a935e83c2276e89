"""The entries of a tar as a table of contents lists them, with their headers byte for byte.

Both formats describe an entry as Go's archive/tar reads it: stargz-snapshotter docs/estargz.md; containers/storage
pkg/chunked/internal/minimal/compression.go.
"""

from __future__ import annotations

import base64
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, BinaryIO

from envbuilder.errors import IntegrityError

_XATTR = "SCHILY.xattr."
_KINDS = {
    tarfile.REGTYPE: "reg",
    tarfile.AREGTYPE: "reg",
    tarfile.DIRTYPE: "dir",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.CHRTYPE: "char",
    tarfile.BLKTYPE: "block",
    tarfile.FIFOTYPE: "fifo",
}
#: Entries of a table; a reader of it keeps all of them in memory.
_MAX_ENTRIES = 4_000_000
_BLOCK = tarfile.BLOCKSIZE


class NoFlavour(IntegrityError):
    """A layer's tar has what the table of contents of no lazy format can describe."""


@dataclass(frozen=True, slots=True)
class Part:
    """One entry. head: all bytes between the data of the one before and its own. entry: as the table has it."""

    head: bytes
    entry: dict[str, Any] = field(hash=False)
    size: int


def parts(tar: BinaryIO, *, source: str) -> Iterator[Part]:
    """The entries of ``tar``, a seekable file; between two of them the caller reads the first one's data from it.

    Raises:
        NoFlavour: malformed, sparse, or with a name that is not UTF-8.
    """
    end = tar.seek(0)
    names: set[str] = set()
    try:
        with tarfile.open(fileobj=tar, mode="r:", encoding="utf-8", errors="surrogateescape") as members:
            for info in members:
                tar.seek(end)
                head = tar.read(info.offset_data - end)
                part = Part(head, _entry(info, head, source), info.size if info.isreg() else 0)
                name = part.entry["name"].strip("/")
                if name in names or len(names) >= _MAX_ENTRIES:
                    raise NoFlavour(f"{source}: {name[:200]!r} twice, or more than {_MAX_ENTRIES} entries")
                names.add(name)
                end = info.offset_data + part.size
                yield part
    except (tarfile.TarError, ValueError, OverflowError, OSError) as error:
        raise NoFlavour(f"{source}: {error}") from error


def _entry(info: tarfile.TarInfo, head: bytes, source: str) -> dict[str, Any]:
    if info.type not in _KINDS or info.issparse():
        raise NoFlavour(f"{source}: {info.name[:200]!r}: want no sparse file and no entry of type {info.type!r}")
    name, notes = _name(info, head), info.pax_headers
    entry: dict[str, Any] = {"type": _KINDS[info.type], "name": name}
    if info.islnk() or info.issym():
        entry["linkName"] = info.linkname
    numbers = {"mode": info.mode, "size": info.size if info.isreg() else 0, "uid": info.uid, "gid": info.gid}
    if info.ischr() or info.isblk():
        numbers |= {"devMajor": info.devmajor, "devMinor": info.devminor}
    entry |= {key: number for key, number in numbers.items() if number}
    for key, seconds in (
        ("modtime", notes.get("mtime") or info.mtime),
        ("accesstime", notes.get("atime")),
        ("changetime", notes.get("ctime")),
    ):
        if seconds is not None:
            entry[key] = _time(str(seconds))
    xattrs = {key.removeprefix(_XATTR): text for key, text in notes.items() if key.startswith(_XATTR)}
    if xattrs:
        values = {key: text.encode("utf-8", "surrogateescape") for key, text in sorted(xattrs.items())}
        entry["xattrs"] = {key: base64.b64encode(value).decode() for key, value in values.items()}
    for text in (name, entry.get("linkName", "")):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # noqa: PERF203 - two texts
            raise NoFlavour(f"{source}: {text[:200]!r}: a name that is not UTF-8 has no place in JSON") from error
    return entry


def _name(info: tarfile.TarInfo, head: bytes) -> str:
    """As in the tar: Go keeps the slash behind a directory's name, Python takes it away."""
    if not info.isdir():
        return info.name
    path = info.pax_headers.get("path", "")
    header = head[-_BLOCK:]
    long = head.rfind(b"././@LongLink")
    if path:
        slash = path.endswith("/")
    elif long >= 0 and head[long + 156 : long + 157] == tarfile.GNUTYPE_LONGNAME:
        slash = head[long + _BLOCK : -_BLOCK].rstrip(b"\0").endswith(b"/")
    else:
        slash = header[:100].rstrip(b"\0").endswith(b"/")
    return info.name + "/" * slash


def _time(text: str) -> str:
    """RFC 3339, to the nanosecond where a PAX header has it."""
    seconds, _, fraction = text.partition(".")
    fraction = fraction[:9].rstrip("0")
    moment = datetime.fromtimestamp(int(seconds), tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
    return moment + (f".{fraction}" if fraction else "") + "Z"
