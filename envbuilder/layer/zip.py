"""Zip archives of hostile origin, read by position: no seeking, no locks, one system call for a small file.

``zipfile`` parses the directory, as it does for pip, so both see the same members; the data
is inflated here, because ``zipfile`` seeks under a lock and takes 60 microseconds for each file.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import BLOCK_SIZE
from envbuilder.errors import IntegrityError
from envbuilder.layer.inflate import Decoder, fastest_decoder
from envbuilder.paths import UnsafePath, entry_path

#: APPNOTE.TXT 4.3.7: signature, 5 fields, crc, sizes, length of the name, length of the extra field.
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
#: Bytes of the local extra field that the first read hopes for: zip64 and alignment fit.
_LIKELY_EXTRA = 64
#: Bytes of a deflated file that are read at a time.
_INPUT = 128 << 10
_ENCRYPTED = 0x1
_STORED, _DEFLATED = 0, 8
#: DEFLATE cannot expand further (zlib's technical note: 1032:1); more is a lie about the size.
_MAX_EXPANSION = 1032
#: Bytes that an archive may unpack to without a question, and times its own size beyond that.
#: Measured on the 165 wheels of our locks: at most 8 times.
_FREE_SIZE, _MAX_RATIO = 256 << 20, 100


class BadArchive(IntegrityError):
    """A zip archive is damaged, hostile, or of a kind that wheels are not."""

    hint = "Report it to the publisher of the package; do not install it by other means."


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of an archive; ``is_executable`` is what its Unix mode says, if it has one."""

    name: str
    size: int
    stored_size: int
    offset: int  # of the local header
    is_deflated: bool
    is_executable: bool


class Archive:
    """The files of the zip archive ``file``, which messages call ``source``; directories are left out.

    Threading: all methods may be called from any thread. The file stays open until the
    archive and every stream of it are gone.

    Raises:
        BadArchive: not a zip, names twice, links, encryption, data that overlaps, a bomb.
        UnsafePath: a name is absolute, climbs or is not canonical.
    """

    def __init__(self, file: Path, *, source: str) -> None:
        self.source = source
        self._decoder, self._broken = fastest_decoder()
        self._fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self.members: Mapping[str, Member] = self._directory(file)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def read(self, member: Member) -> bytes:
        """All bytes of ``member``: as many as the directory says; the caller checks their digest.

        Raises:
            BadArchive: its data is damaged, short or long.
        """
        start, data = self._locate(member, member.stored_size)
        if len(data) != member.stored_size:
            data = self.pread(member.stored_size, start)
        if member.is_deflated:
            data = self.inflated(self.decoder(), data, member.size + 1, member)
        if len(data) != member.size:
            got = "more" if len(data) > member.size else str(len(data))
            raise BadArchive(f"{self.source}: {member.name}: want {member.size} bytes, got {got}")
        return data

    def open(self, member: Member) -> MemberReader:
        """A stream of ``member``, for files too large for ``read``; as many bytes as the directory says, or fewer."""
        start, _ = self._locate(member, 0)
        return MemberReader(self, member, start)

    def _directory(self, file: Path) -> dict[str, Member]:
        try:
            with zipfile.ZipFile(file) as archive:
                found, end = archive.infolist(), archive.start_dir
        except (zipfile.BadZipFile, ValueError, struct.error, EOFError, NotImplementedError) as error:
            raise BadArchive(f"{self.source}: not a zip archive: {error}") from error
        members: dict[str, Member] = {}
        taken: list[tuple[int, int, str]] = []
        for item in found:
            self._check(item)
            taken.append((item.header_offset, item.compress_size + _LOCAL_HEADER.size, item.filename))
            if item.is_dir():
                continue
            mode = item.external_attr >> 16
            if item.filename in members:
                raise BadArchive(f"{self.source}: {item.filename!r} is there twice")
            members[item.filename] = Member(
                name=item.filename,
                size=item.file_size,
                stored_size=item.compress_size,
                offset=item.header_offset,
                is_deflated=item.compress_type == _DEFLATED,
                is_executable=stat.S_ISREG(mode) and bool(mode & 0o111),
            )
        self._check_extent(taken, end)
        total = sum(member.size for member in members.values())
        if total > _FREE_SIZE and total > _MAX_RATIO * os.fstat(self._fd).st_size:
            raise BadArchive(f"{self.source}: unpacks to {total} bytes, over {_MAX_RATIO} times its own size")
        return members

    def _check(self, item: zipfile.ZipInfo) -> None:
        name, where = item.filename, f"{self.source}: {item.filename[:200]!r}"
        if (
            name != item.orig_filename
            or name.startswith("/")
            or entry_path(name, source=self.source) != (name[:-1] if item.is_dir() else name)
        ):
            raise UnsafePath(f"{self.source}: not a canonical path: {item.orig_filename[:200]!r}")
        kind = stat.S_IFMT(item.external_attr >> 16)
        if kind not in (0, stat.S_IFDIR if item.is_dir() else stat.S_IFREG):
            raise BadArchive(f"{where}: want a file or directory, got a link or device (mode {kind:o})")
        if item.flag_bits & _ENCRYPTED or item.compress_type not in (_STORED, _DEFLATED):
            raise BadArchive(
                f"{where}: encrypted or compressed by method {item.compress_type}: want stored or deflated"
            )
        most = item.compress_size if item.compress_type == _STORED else _MAX_EXPANSION * item.compress_size
        if item.file_size > most or (item.compress_type == _STORED and item.file_size != most):
            raise BadArchive(f"{where}: {item.compress_size} stored bytes cannot become {item.file_size}")

    def _check_extent(self, taken: list[tuple[int, int, str]], end: int) -> None:
        """No byte of the archive belongs to two files: overlapping files are how small bombs are made."""
        before = 0
        for offset, length, name in sorted(taken):
            if offset < before:
                raise BadArchive(f"{self.source}: {name!r} overlaps the file before it")
            before = offset + length
        if before > end:
            raise BadArchive(f"{self.source}: a file reaches into the directory")

    def _locate(self, member: Member, wanted: int) -> tuple[int, bytes]:
        """Where the data of ``member`` starts, and up to ``wanted`` bytes of it that were read on the way."""
        name = member.name.encode()
        head = self.pread(_LOCAL_HEADER.size + len(name) + _LIKELY_EXTRA + wanted, member.offset)
        if len(head) < _LOCAL_HEADER.size:
            raise BadArchive(f"{self.source}: {member.name}: ends early")
        signature, *_, name_size, extra_size = _LOCAL_HEADER.unpack_from(head)
        at = _LOCAL_HEADER.size + name_size + extra_size
        local = head[_LOCAL_HEADER.size : _LOCAL_HEADER.size + name_size]
        # A reader that goes by local headers must not see another archive than one that goes by the directory.
        if signature != b"PK\3\4" or (local != name and local != member.name.encode("cp437", "replace")):
            raise BadArchive(f"{self.source}: {member.name}: its local header says something else")
        return member.offset + at, head[at : at + wanted]

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` raw bytes of the archive at ``offset``."""
        return os.pread(self._fd, size, offset)

    def decoder(self) -> Decoder:
        """A fresh decoder of raw DEFLATE."""
        return self._decoder()

    def inflated(self, decoder: Decoder, block: bytes, limit: int, member: Member) -> bytes:
        """What ``decoder`` makes of ``block`` and of what it had before, at most ``limit`` bytes."""
        try:
            return decoder.decompress(block, limit)
        except self._broken as error:
            raise BadArchive(f"{self.source}: {member.name}: {error}") from error


class MemberReader(io.RawIOBase):
    """The bytes of one deflated or stored file, made as they are asked for; at most ``member.size`` of them."""

    def __init__(self, archive: Archive, member: Member, start: int) -> None:
        super().__init__()
        self._archive, self._member = archive, member
        self._at, self._end = start, start + member.stored_size
        self._left = member.size
        self._decoder = archive.decoder() if member.is_deflated else None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(BLOCK_SIZE), b""))
        want = min(size, self._left)
        data = self._decoded(want) if want else b""
        self._left -= len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _decoded(self, want: int) -> bytes:
        if self._decoder is None:
            return self._more(want)
        while not self._decoder.eof:
            wants = self._decoder.needs_input
            block = self._more(_INPUT) if wants else b""
            data = self._archive.inflated(self._decoder, block, want, self._member)
            if data:
                return data
            if wants and not block:
                break
        return b""

    def _more(self, size: int) -> bytes:
        block = self._archive.pread(min(size, self._end - self._at), self._at)
        self._at += len(block)
        return block
