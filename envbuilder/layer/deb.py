"""A .deb as a tree: its files where a merged /usr wants them, and its part of dpkg's database.

No maintainer script runs; ``computed.py`` makes what they would have made.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import Readable
from envbuilder.errors import SpecError
from envbuilder.layer.debian.ar import BadDeb, Member, Window, members
from envbuilder.layer.debian.control import Control, parse_control
from envbuilder.layer.debian.spool import Spool
from envbuilder.layer.debian.untar import Data, TarMember, read_tar
from envbuilder.layer.prefix import PREFIX
from envbuilder.layer.tree import Entry, directory, file
from envbuilder.lock.model import Deb
from envbuilder.paths import entry_path

#: Bytes that a control archive, and one file of it, may unpack to; the largest of trixie have 3 MB.
_MAX_CONTROL, _MAX_CONTROL_FILE = 32 << 20, 16 << 20
#: Bytes that the data may unpack to; the largest of trixie have 2 GB.
_MAX_DATA = 32 << 30
#: Bytes of memory that a decompressor may take: xz -9 needs 65 MiB, zstd's --ultra window 128 MiB.
_MAX_MEMORY = 256 << 20
#: Directories at the top that are links into usr/ (Debian Policy 10.1, base-files).
_MERGED = frozenset(("bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"))
#: Directories that base-files ships and its postinst replaces by links; a directory in one layer that is
#: a link in another breaks runtimes (build.md 2.2), so the link stands in the computed layer only.
_MOVED = {"var/run": "run", "var/lock": "run/lock"}


class InPrefix(SpecError):
    """A Debian package has something where Python packages are installed, so that one could hide the other."""

    hint = "Leave the package out: the directory of the Python packages is theirs alone."


class WrongDeb(BadDeb):
    """A .deb is another package, version or architecture than the lock says."""


def control_of(path: Path) -> Control:
    """The control part of the .deb at ``path``.

    Raises:
        BadDeb: it is malformed, truncated or over a limit.
    """
    found: dict[str, tuple[int, bytes]] = {}
    with path.open("rb") as deb, _part(deb, "control", path.name) as stream:
        for member, data in read_tar(stream, limit=_MAX_CONTROL, source=path.name):
            name = member.name.removeprefix("./")
            if not member.size and "/" in member.name and not name:
                continue  # the archive's own directory
            if "/" in name or member.size > _MAX_CONTROL_FILE or member.link:
                raise BadDeb(f"{path.name}: control archive: unexpected member {member.name[:200]!r}")
            found[name] = (member.mode & 0o777, data.read())
    return parse_control(found, source=path.name)


def deb_entries(path: Path, deb: Deb, *, spool: Spool | None = None) -> Iterator[Entry]:
    """The tree of one package, in archive order; its files in ``var/lib/dpkg/info`` last.

    Paths lie in a merged /usr; owners and modes are the archive's. File data is kept in ``spool``
    (one of its own by default), so give one spool to all packages of a layer.

    Raises:
        WrongDeb: the file is not the package that ``deb`` names.
        BadDeb, UnsafePath: it is malformed, hostile or over a limit.
        InPrefix: it reaches into the directory of the Python packages.
    """
    control = control_of(path)
    for field, want, got in (
        ("package", deb.name, control.package),
        ("version", deb.version, control.version),
        ("architecture", deb.architecture, control.architecture),
    ):
        if want != got:
            raise WrongDeb(f"{path.name}: {field}: want {want}, got {got}", hint="Lock the environment again.")
    spool = spool or Spool()
    listed: list[str] = []
    for member, data in data_members(path):
        if member.name.strip("./") == "":
            listed.append("/.")
            continue  # the root is the image's own
        name = entry_path(member.name, source=path.name)
        listed.append("/" + name)
        if name in _MOVED:
            continue
        entry = _entry(replace(member, name=name), data, spool, path.name)
        check_place(control.package, entry.path, is_directory=entry.is_directory)
        yield entry
    yield from _database(control, listed)


def data_members(path: Path) -> Iterator[tuple[TarMember, Data]]:
    """The raw members of the data archive of the .deb at ``path``, in archive order.

    Raises:
        BadDeb: it is malformed, truncated or over a limit.
    """
    with path.open("rb") as deb, _part(deb, "data", path.name) as stream:
        yield from read_tar(stream, limit=_MAX_DATA, source=path.name)


def merged(path: str) -> str:
    """Where tree path ``path`` lies when bin, sbin and lib* are links into usr/, var/run and var/lock into run/."""
    if path.split("/", 1)[0] in _MERGED:
        return "usr/" + path
    for old, new in _MOVED.items():
        if path == old or path.startswith(old + "/"):
            return new + path[len(old) :]
    return path


def check_place(package: str, path: str, *, is_directory: bool = False) -> None:
    """Check that ``path`` of a Debian package leaves the directory of the Python packages alone.

    Raises:
        InPrefix: it is in it, is it, or stands in its way.
    """
    in_the_way = not is_directory and PREFIX.startswith(f"{path}/")
    if in_the_way or path == PREFIX or path.startswith(f"{PREFIX}/"):
        raise InPrefix(f"/{path}: {package} has it, and /{PREFIX} is for Python packages")


def _entry(member: TarMember, data: Data, spool: Spool, source: str) -> Entry:
    is_alias = member.name in _MERGED and member.link and not member.hard_link
    return Entry(
        path=member.name if is_alias else merged(member.name),
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
        size=member.size,
        link=merged(entry_path(member.link, source=source)) if member.hard_link else member.link,
        device=member.device,
        open=spool.add(data) if member.size else None,
    )


def _database(control: Control, listed: list[str]) -> Iterator[Entry]:
    """``var/lib/dpkg/info/<package>.*`` as dpkg writes them when it unpacks the package."""
    stem = f"var/lib/dpkg/info/{control.info_name}"
    yield directory("var/lib/dpkg/info")
    yield file(f"{stem}.list", "".join(f"{line}\n" for line in listed).encode("utf-8", "surrogateescape"))
    for name, (mode, content) in sorted(control.members.items()):
        yield file(f"{stem}.{name}", content, mode)


@contextmanager
def _part(deb: BinaryIO, stem: str, source: str) -> Iterator[Readable]:
    """The decompressed stream of ``control.tar.*`` or ``data.tar.*``."""
    found = list(members(deb, source=source))
    if not found or found[0].name != "debian-binary":
        raise BadDeb(f"{source}: not a .deb: want debian-binary as the first member")
    deb.seek(found[0].offset)
    if deb.read(min(found[0].size, 16))[:2] != b"2.":
        raise BadDeb(f"{source}: format: want 2.x")
    member = next((item for item in found if item.name.startswith(f"{stem}.tar")), None)
    if member is None:
        raise BadDeb(f"{source}: no {stem}.tar")
    yield _Checked(_decompressed(deb, member, source), f"{source}: {member.name}")


def _decompressed(deb: BinaryIO, member: Member, source: str) -> Readable:
    window = cast("BinaryIO", Window(deb, member))
    suffix = member.name.partition(".tar")[2]
    if suffix == "":
        return window
    if suffix == ".xz":
        return _XzReader(window)
    if suffix == ".zst":
        return zstandard.ZstdDecompressor(max_window_size=_MAX_MEMORY // 2).stream_reader(
            window, read_across_frames=True
        )
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=window)
    raise BadDeb(f"{source}: {member.name}: want .xz, .zst, .gz or no compression")


@dataclass(frozen=True, slots=True)
class _Checked:
    """A decompressor whose own errors are ours, wherever it is read from."""

    stream: Readable
    source: str

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self.stream.read(size)
        except (lzma.LZMAError, zstandard.ZstdError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise BadDeb(f"{self.source}: {error}") from error


@dataclass(slots=True)
class _XzReader:
    """lzma.LZMAFile with a memory limit, which it lacks; reads concatenated streams."""

    source: BinaryIO
    _decoder: lzma.LZMADecompressor | None = None

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._decoder is None:
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_MEMORY)
            block = self.source.read(1 << 16) if self._decoder.needs_input else b""
            if self._decoder.needs_input and not block:
                raise EOFError("compressed data ends early")
            data = self._decoder.decompress(block, size)
            if data:
                return data
            if self._decoder.eof:
                return b""
