"""What a wheel holds, without the wheel: its directory, RECORD and the beginnings of its scripts, read by ranges.

They lie in a sparse file of the wheel's size, each where the wheel has it, so that whoever reads wheels reads that too.
Nothing of it is checked against the lock's digest: it is good for a warning, and for nothing that is built.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import urllib3

from envbuilder.errors import UnavailableError
from envbuilder.lock.download import Http, without_credentials

#: Bytes that are read first, from the end: of the 165 wheels of ai 134 have RECORD last.
_TAIL = 64 << 10
#: Bytes that one listing may take in all, and those between two wanted files that are read along.
_MOST, _GAP = 64 << 20, 16 << 10
#: Bytes of a script that are read: its first line says whether it is rewritten, and only then is the rest asked for.
_SCRIPT = 8 << 10
#: Header of a file in the archive, and what may follow its name (APPNOTE.TXT 4.3.7).
_HEADER, _EXTRA = 30, 64
#: End of the directory (APPNOTE.TXT 4.3.16): size and offset of the directory stand 12 bytes behind its signature.
_END, _PLACE = b"PK\5\6", struct.Struct("<II")
_METADATA = re.compile(r"[^/]+\.dist-info/(?:RECORD|RECORD\.jws|RECORD\.p7s|WHEEL|entry_points\.txt)\Z")
_SCRIPTS = re.compile(r"[^/]+\.data/scripts/")


class NoListing(UnavailableError):
    """A wheel's directory cannot be read by ranges: its index gives no parts, or it is no plain zip."""


def fetch_listing(http: Http, url: str, headers: Mapping[str, str], size: int, out: Path) -> int:
    """Write what can be said of the wheel of ``size`` bytes at ``url`` to ``out``; bytes that were read.

    Raises:
        NoListing: see there.
    """
    start = max(0, size - _TAIL)
    with out.open("wb") as file:
        os.ftruncate(file.fileno(), size)

        def read(first: int, end: int) -> bytes:
            data = _range(http, url, headers, first, end)
            os.pwrite(file.fileno(), data, first)
            return data

        directory = _directory(read(start, size), size, url)
        if directory < start:
            read(directory, start)
        count = size - min(directory, start)
        for first, end in _wanted(out, url, min(directory, start)):
            count += end - first
            if count > _MOST:
                raise NoListing(f"{without_credentials(url)}: want at most {_MOST} bytes of a listing")
            read(first, end)
    return count


def _directory(tail: bytes, size: int, url: str) -> int:
    at = tail.rfind(_END)
    if at < 0 or at + 20 > len(tail):
        raise NoListing(f"{without_credentials(url)}: no zip ends there")
    length, offset = _PLACE.unpack_from(tail, at + 12)
    if offset + length > size or length > _MOST:
        raise NoListing(f"{without_credentials(url)}: its directory lies elsewhere (zip64)")
    return int(offset)


def _wanted(out: Path, url: str, known: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what is still to be read, before ``known``: what lies close together at once."""
    try:
        with zipfile.ZipFile(out) as archive:
            found = sorted(_extents(archive.infolist(), known))
    except (zipfile.BadZipFile, ValueError, struct.error, EOFError, NotImplementedError) as error:
        raise NoListing(f"{without_credentials(url)}: {error}") from error
    begin = end = -1
    for first, last in found:
        if begin >= 0 and first <= end + _GAP:
            end = max(end, last)
            continue
        if begin >= 0:
            yield begin, end
        begin, end = first, last
    if begin >= 0:
        yield begin, end


def _extents(members: Iterable[zipfile.ZipInfo], known: int) -> Iterator[tuple[int, int]]:
    for member in members:
        is_script = _SCRIPTS.match(member.filename)
        if member.header_offset < known and (is_script or _METADATA.match(member.filename)):
            wanted = min(member.compress_size, _SCRIPT) if is_script else member.compress_size
            end = member.header_offset + _HEADER + len(member.filename.encode()) + _EXTRA + wanted
            yield member.header_offset, min(end, known)


def _range(http: Http, url: str, headers: Mapping[str, str], first: int, end: int) -> bytes:
    wanted = {**headers, "Range": f"bytes={first}-{end - 1}"}
    data = b""
    try:
        response = http.pool.request("GET", url, headers=wanted, preload_content=False)
        try:
            data = response.read(end - first) if response.status == 206 else b""
        finally:
            # What is unread must not meet the next request.
            (response.release_conn if len(data) == end - first else response.close)()
    except urllib3.exceptions.HTTPError as error:
        raise NoListing(f"{without_credentials(url)}: {type(error).__name__}") from error
    if len(data) != end - first:
        raise NoListing(
            f"{without_credentials(url)}: want {end - first} bytes at {first}, got status {response.status}"
        )
    return bytes(data)
