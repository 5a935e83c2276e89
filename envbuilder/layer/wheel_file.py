"""A wheel as a checked archive: one package's, of a format that we know, its files those that its RECORD lists.

Source: packaging.python.org, "Binary distribution format" (PEP 427) and "Recording installed projects".
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from packaging.utils import canonicalize_name

from envbuilder.digest import BLOCK_SIZE, Digest, Readable, VerifyingReader
from envbuilder.errors import IntegrityError
from envbuilder.layer.wheel_record import BadRecord, Recorded, parse_record
from envbuilder.layer.zip import Archive, Member
from envbuilder.lock.model import Wheel
from envbuilder.paths import file_name

#: Bytes that METADATA-like files and scripts with a rewritten first line may have.
MAX_TEXT = 64 << 20
#: Bytes up to which a file is inflated and checked in one call; larger ones are streamed.
_WHOLE = 4 << 20
#: Names that cannot be in RECORD.
_UNRECORDED = frozenset(("RECORD", "RECORD.jws", "RECORD.p7s"))
_WHEEL_VERSION = re.compile(r"^Wheel-Version:\s*(\d+)\.(\d+)\s*$", re.MULTILINE)
_NOTHING = Digest.of(b"")


class BadWheel(IntegrityError):
    """A file is no wheel of the package that the lock names, or of a version of the format that we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A wheel whose names were checked: its archive, its .dist-info and what RECORD says.

    record: None when it is not asked.
    """

    archive: Archive
    info: str
    record: Mapping[str, Recorded] | None

    @property
    def source(self) -> str:
        return self.archive.source

    def digest(self, member: Member) -> Digest:
        """sha256 of ``member`` as RECORD has it; computed where RECORD uses a longer digest or must leave it out.

        PEP 427: "installation will fail if any file in the archive is not both mentioned and correctly
        hashed in RECORD". pip does not check, so a wheel that fails here may have seemed to work.

        Raises:
            BadRecord: it is not listed, or not the file that is.
        """
        recorded = self._recorded(member)
        if recorded is None:
            return _sha256(self.archive.open(member))
        if recorded.algorithm == "sha256":
            digest = Digest("sha256:" + recorded.digest.hex())
        else:
            longer = hashlib.new(recorded.algorithm)
            digest = _sha256(self.archive.open(member), longer.update)
            if longer.digest() != recorded.digest:
                raise self._mismatch(member)
        if (digest == _NOTHING) != (member.size == 0):  # an empty file has no stream to check
            raise self._mismatch(member)
        return digest

    def open(self, member: Member, digest: Digest) -> BinaryIO:
        """The bytes of ``member``, which are those of its ``digest``.

        Raises:
            BadRecord, or DigestMismatch from reading: they are not.
        """
        if member.size <= _WHOLE:
            data = self.archive.read(member)
            if hashlib.sha256(data).hexdigest() != digest.hex:
                raise self._mismatch(member)
            return io.BytesIO(data)
        inner = cast("BinaryIO", self.archive.open(member))
        return cast("BinaryIO", VerifyingReader(inner, digest, member.size, source=f"{self.source}: {member.name}"))

    def read(self, member: Member) -> bytes:
        """All bytes of ``member``, checked."""
        with self.open(member, self.digest(member)) as stream:
            return stream.read()

    def text(self, name: str) -> bytes | None:
        """A small file of .dist-info, checked unless it is RECORD itself; None if there is none."""
        member = self.archive.members.get(f"{self.info}/{name}")
        if member is None:
            return None
        if member.size > MAX_TEXT:
            raise BadWheel(f"{self.source}: {member.name}: want at most {MAX_TEXT} bytes, got {member.size}")
        return self.archive.read(member) if name in _UNRECORDED else self.read(member)

    def _recorded(self, member: Member) -> Recorded | None:
        """The row of RECORD; None where it is not asked, or has none with reason."""
        if self.record is None:
            return None
        recorded = self.record.get(member.name)
        if recorded is None and member.name.removeprefix(f"{self.info}/") not in _UNRECORDED:
            raise BadRecord(f"{self.source}: {member.name!r} is not in RECORD")
        if recorded is not None and recorded.size not in (-1, member.size):
            raise BadRecord(
                f"{self.source}: {member.name!r}: RECORD wants {recorded.size} bytes, the archive has {member.size}"
            )
        return recorded

    def _mismatch(self, member: Member) -> BadRecord:
        return BadRecord(f"{self.source}: {member.name!r} is not the file that RECORD lists (another digest)")


def open_wheel(file: Path, wheel: Wheel) -> WheelFile:
    """The wheel at ``file``, which is to be ``wheel``.

    Raises:
        BadWheel, BadArchive, BadRecord, UnsafePath: it is not what it should be.
    """
    archive = Archive(file, source=file_name(wheel.file, source=wheel.name))
    infos = {name.split("/", 1)[0] for name in archive.members if "/" in name}
    infos = {name for name in infos if name.endswith(".dist-info")}
    if len(infos) != 1:
        raise BadWheel(f"{archive.source}: want one .dist-info directory, got {len(infos)}")
    info = infos.pop()
    if canonicalize_name(info.removesuffix(".dist-info").rpartition("-")[0]) != wheel.name:
        raise BadWheel(f"{archive.source}: want a wheel of {wheel.name}, got one with {info[:200]!r}")
    opened = WheelFile(archive=archive, info=info, record={} if wheel.recorded else None)
    if wheel.recorded:
        record = opened.text("RECORD")
        if record is None:
            raise BadRecord(f"{archive.source}: it has no RECORD")
        opened = replace(opened, record=parse_record(record, source=archive.source))
    metadata = opened.text("WHEEL")
    version = _WHEEL_VERSION.search((metadata or b"").decode("utf-8", "replace"))
    if version is None or int(version[1]) != 1:
        got = f"{version[1]}.{version[2]}" if version else "none"
        raise BadWheel(f"{archive.source}: WHEEL: want Wheel-Version 1.x, got {got}")
    return opened


def _sha256(stream: Readable, also: Callable[[bytes], None] = lambda _block: None) -> Digest:
    """sha256 of ``stream``, whose blocks ``also`` sees too."""
    sha256 = hashlib.sha256()
    while block := stream.read(BLOCK_SIZE):
        sha256.update(block)
        also(block)
    return Digest("sha256:" + sha256.hexdigest())
