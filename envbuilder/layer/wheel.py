"""A wheel as a tree: what ``pip install`` would have put into the prefix, without installing.

Source: packaging.python.org, "Binary distribution format" (PEP 427) and "Recording installed
projects"; where they leave room, pip decides. The entries are a function of the wheel's bytes,
the prefix, the interpreter's tag and the compiler, so they belong in the wheel's own layer.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from packaging.utils import canonicalize_name

from envbuilder.digest import BLOCK_SIZE, Digest, Readable, VerifyingReader
from envbuilder.errors import IntegrityError, SpecError
from envbuilder.layer.claims import Claim
from envbuilder.layer.prefix import PREFIX, Prefix
from envbuilder.layer.pyc import Compiler, compile_entries, compiled_path
from envbuilder.layer.scripts import (
    command,
    for_python,
    is_wrapper,
    needs_interpreter,
    parse_entry_points,
    with_interpreter,
)
from envbuilder.layer.tree import FILE, Entry
from envbuilder.layer.wheel_record import BadRecord, Recorded, dump_record, parse_record
from envbuilder.layer.zip import Archive, Member
from envbuilder.lock.model import Interpreter, Wheel
from envbuilder.paths import UnsafePath, file_name

#: Name of these rules in a layer's recipe: raise the number when any entry of any wheel would change.
WHEEL_WRITER = "wheel/1"
#: Bytes up to which a file is inflated and checked in one call; larger ones are streamed.
_WHOLE = 4 << 20
#: Bytes that METADATA-like files and scripts with a rewritten first line may have.
_MAX_TEXT = 64 << 20
#: Names in .dist-info that an installer writes itself, or that cannot be in RECORD.
_INSTALLERS = frozenset(("INSTALLER", "REQUESTED", "direct_url.json"))
_UNRECORDED = frozenset(("RECORD", "RECORD.jws", "RECORD.p7s"))
_WHEEL_VERSION = re.compile(r"^Wheel-Version:\s*(\d+)\.(\d+)\s*$", re.MULTILINE)
_NOTHING = Digest.of(b"")


class BadWheel(IntegrityError):
    """A file is no wheel of the package that the lock names, or of a version of the format that we know."""


class NotThere(SpecError):
    """The declaration leaves out a file that the wheel does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A file of the installed tree: its digest is known, its bytes are made by ``open``."""

    path: str
    executable: bool
    size: int
    digest: Digest
    open: Callable[[], BinaryIO]

    @property
    def mode(self) -> int:
        return 0o755 if self.executable else 0o644

    def entry(self) -> Entry:
        return Entry(path=self.path, mode=FILE | self.mode, size=self.size, open=self.open if self.size else None)

    def claim(self) -> Claim:
        return Claim(self.digest, self.mode)


def wheel_entries(
    file: Path, wheel: Wheel, *, prefix: str = PREFIX, python: Interpreter, compiler: Compiler | None = None
) -> Iterator[Entry]:
    """The files that ``wheel``, at ``file``, puts below ``prefix``; RECORD last, directories left out.

    Files with modes 0644 or 0755, root's; commands for its entry points; INSTALLER; with ``compiler``
    a .pyc beside each module that compiles. File data is checked against the wheel's RECORD as it is read,
    unless the lock says that it is not to be believed: the RECORD that is written is then true.

    Raises:
        BadWheel, BadArchive, BadRecord, BadEntryPoint, UnsafePath: it is not what it should be.
        NotThere: what the lock leaves out is not in it.
        DigestMismatch: from reading an entry, when its bytes are not those that RECORD names.
    """
    where = Prefix(root=prefix, python=python)
    opened = _open(file, wheel)
    placed = _place(opened, where)
    modules: list[Entry] = []
    if compiler is not None:
        modules = [item.entry() for item in placed.values() if _is_module(item.path, where)]
        for module in modules:  # a .pyc that came along names an mtime that no image has
            placed.pop(compiled_path(module.path, compiler.cache_tag), None)
    for item in placed.values():
        yield item.entry()
    record: list[tuple[str, Digest, int] | tuple[str, None, None]] = [
        (where.recorded(item.path), item.digest, item.size) for item in placed.values()
    ]
    if compiler is not None:
        for entry in compile_entries(modules, compiler):
            record.append((where.recorded(entry.path), None, None))
            yield entry
    record_path = f"{where.site_packages}/{opened.info}/RECORD"
    record.append((where.recorded(record_path), None, None))
    yield _made(record_path, dump_record(record), executable=False).entry()


def wheel_claims(
    file: Path, wheel: Wheel, *, prefix: str = PREFIX, python: Interpreter, compiled: bool = True
) -> Mapping[str, Claim]:
    """What ``wheel`` puts at each path, from its directory and RECORD alone.

    Of RECORD and .pyc files, whose bytes are not known yet, the claim names what they are made from.

    Raises:
        as ``wheel_entries``.
    """
    where = Prefix(root=prefix, python=python)
    opened = _open(file, wheel)
    claims = {item.path: item.claim() for item in _place(opened, where).values()}
    claims[f"{where.site_packages}/{opened.info}/RECORD"] = Claim(wheel.digest, 0o644)
    modules = [path for path in claims if _is_module(path, where)] if compiled else []
    claims.update({compiled_path(path, where.cache_tag): Claim(claims[path].digest, 0o644, path) for path in modules})
    return claims


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A wheel whose names were checked: its archive, its .dist-info and what RECORD says.

    record: None when it is not asked. without: files that are not wanted, as RECORD lists them.
    """

    archive: Archive
    info: str
    name: str
    record: Mapping[str, Recorded] | None
    without: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return self.archive.source

    def text(self, name: str) -> bytes | None:
        """A small file of .dist-info, checked unless it is RECORD itself; None if there is none."""
        member = self.archive.members.get(f"{self.info}/{name}")
        if member is None:
            return None
        if member.size > _MAX_TEXT:
            raise BadWheel(f"{self.source}: {member.name}: want at most {_MAX_TEXT} bytes, got {member.size}")
        return self.archive.read(member) if name in _UNRECORDED else _read(self, member)


def _open(file: Path, wheel: Wheel) -> _Opened:
    archive = Archive(file, source=file_name(wheel.file, source=wheel.name))
    infos = {name.split("/", 1)[0] for name in archive.members if "/" in name}
    infos = {name for name in infos if name.endswith(".dist-info")}
    if len(infos) != 1:
        raise BadWheel(f"{archive.source}: want one .dist-info directory, got {len(infos)}")
    info = infos.pop()
    if canonicalize_name(info.removesuffix(".dist-info").rpartition("-")[0]) != wheel.name:
        raise BadWheel(f"{archive.source}: want a wheel of {wheel.name}, got one with {info[:200]!r}")
    opened = _Opened(
        archive=archive, info=info, name=wheel.name, record={} if wheel.recorded else None, without=wheel.without
    )
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


def _place(opened: _Opened, where: Prefix) -> dict[str, _Placed]:
    """Every file but RECORD and .pyc files, by tree path."""
    entry_points = parse_entry_points(opened.text("entry_points.txt") or b"", source=opened.source)
    entry_points = tuple(for_python(entry_points, where.python.version))
    placed: dict[str, _Placed] = {}

    def put(item: _Placed) -> None:
        other = placed.setdefault(item.path, item)
        if (other.digest, other.executable) != (item.digest, item.executable):
            raise BadWheel(f"{opened.source}: it has two different files for {item.path!r}")

    for name, member in opened.archive.members.items():
        top, _, rest = name.partition("/")
        if top == opened.info and rest in _INSTALLERS | {"RECORD"}:
            continue
        if not top.endswith(".data"):
            put(_from_archive(opened, member, f"{where.site_packages}/{name}", executable=member.is_executable))
            continue
        key, _, rest = rest.partition("/")
        base = where.scheme(key, opened.name)
        if base is None or not rest:
            raise BadWheel(f"{opened.source}: {name[:200]!r} belongs to no scheme that we know")
        path = where.real(f"{base}/{rest}")
        if key != "scripts":
            put(_from_archive(opened, member, path, executable=member.is_executable))
        elif not is_wrapper(rest, entry_points):
            put(_script(opened, member, path, where))
    for entry_point in entry_points:
        path = f"{where.root}/bin/{entry_point.name}"
        placed[path] = _made(path, command(entry_point, where.interpreter), executable=True)
    for name in opened.without:
        found = [path for path in placed if where.recorded(path) == name]
        if not found:
            raise NotThere(f"{opened.source}: leave-out: it installs no {name!r}")
        del placed[found[0]]
    installer = f"{where.site_packages}/{opened.info}/INSTALLER"
    placed[installer] = _made(installer, b"envbuilder\n", executable=False)
    _check_tree(placed, opened.source)
    return placed


def _from_archive(opened: _Opened, member: Member, path: str, *, executable: bool) -> _Placed:
    digest = _digest(opened, member)
    if (digest == _NOTHING) != (member.size == 0):  # an empty file has no stream to check
        raise _mismatch(opened, member)
    return _Placed(
        path=path,
        executable=executable,
        size=member.size,
        digest=digest,
        open=partial(_reader, opened, member, digest),
    )


def _script(opened: _Opened, member: Member, path: str, where: Prefix) -> _Placed:
    # Always executable: it is there to be run, and tools that zip on Windows lose the bit.
    if not needs_interpreter(opened.archive.open(member).read(8)):
        return _from_archive(opened, member, path, executable=True)
    if member.size > _MAX_TEXT:
        raise BadWheel(f"{opened.source}: {member.name}: a script of {member.size} bytes")
    return _made(path, with_interpreter(_read(opened, member), where.interpreter), executable=True)


def _made(path: str, data: bytes, *, executable: bool) -> _Placed:
    return _Placed(
        path=path, executable=executable, size=len(data), digest=Digest.of(data), open=partial(io.BytesIO, data)
    )


def _digest(opened: _Opened, member: Member) -> Digest:
    """sha256 of ``member`` as RECORD has it; computed where RECORD uses a longer digest or must leave it out.

    PEP 427: "installation will fail if any file in the archive is not both mentioned and correctly
    hashed in RECORD". pip does not check, so a wheel that fails here may have seemed to work.
    """
    if opened.record is None:
        return _sha256(opened.archive.open(member))
    recorded = opened.record.get(member.name)
    if recorded is None:
        if member.name.removeprefix(f"{opened.info}/") in _UNRECORDED:
            return Digest.of(opened.archive.read(member))
        raise BadRecord(f"{opened.source}: {member.name!r} is not in RECORD")
    if recorded.size not in (-1, member.size):
        raise BadRecord(
            f"{opened.source}: {member.name!r}: RECORD wants {recorded.size} bytes, the archive has {member.size}"
        )
    if recorded.algorithm == "sha256":
        return Digest("sha256:" + recorded.digest.hex())
    ours, theirs = hashlib.sha256(), hashlib.new(recorded.algorithm)
    stream = opened.archive.open(member)
    while block := stream.read(BLOCK_SIZE):
        ours.update(block)
        theirs.update(block)
    if theirs.digest() != recorded.digest:
        raise _mismatch(opened, member)
    return Digest("sha256:" + ours.hexdigest())


def _sha256(stream: Readable) -> Digest:
    sha256 = hashlib.sha256()
    while block := stream.read(BLOCK_SIZE):
        sha256.update(block)
    return Digest("sha256:" + sha256.hexdigest())


def _reader(opened: _Opened, member: Member, digest: Digest) -> BinaryIO:
    if member.size <= _WHOLE:
        data = opened.archive.read(member)
        if hashlib.sha256(data).hexdigest() != digest.hex:
            raise _mismatch(opened, member)
        return io.BytesIO(data)
    inner = cast("BinaryIO", opened.archive.open(member))
    return cast("BinaryIO", VerifyingReader(inner, digest, member.size, source=f"{opened.source}: {member.name}"))


def _read(opened: _Opened, member: Member) -> bytes:
    with _reader(opened, member, _digest(opened, member)) as stream:
        return stream.read()


def _mismatch(opened: _Opened, member: Member) -> BadRecord:
    return BadRecord(f"{opened.source}: {member.name!r} is not the file that RECORD lists (another digest)")


def _check_tree(placed: Mapping[str, _Placed], source: str) -> None:
    parents: set[str] = set()
    for path in placed:
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            parent = parent.rpartition("/")[0]
    if both := sorted(parents & placed.keys()):
        raise UnsafePath(f"{source}: {both[0]!r} is a file and a directory")


def _is_module(path: str, where: Prefix) -> bool:
    """Whether pip would compile ``path``; of its choice only scripts are left out: nothing imports those."""
    return path.endswith(".py") and path.startswith(where.site_packages + "/")
