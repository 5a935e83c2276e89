"""A wheel as a tree: what ``pip install`` would have put into the prefix, without installing.

Source: packaging.python.org, "Binary distribution format" (PEP 427) and "Recording installed
projects"; where they leave room, pip decides. The entries are a function of the wheel's bytes,
the prefix, the interpreter's tag and the compiler, so they belong in the wheel's own layer.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.layer.claims import Claim
from envbuilder.layer.prefix import PREFIX, Prefix
from envbuilder.layer.pyc import Compiler, compile_entries, compiled_path, is_compilable
from envbuilder.layer.scripts import (
    command,
    for_python,
    is_wrapper,
    needs_interpreter,
    parse_entry_points,
    with_interpreter,
)
from envbuilder.layer.tree import FILE, Entry
from envbuilder.layer.wheel_file import MAX_TEXT, BadWheel, WheelFile, open_wheel
from envbuilder.layer.wheel_record import dump_record
from envbuilder.layer.zip import Member
from envbuilder.lock.model import Interpreter, Wheel
from envbuilder.paths import UnsafePath

#: Name of these rules in a layer's recipe: raise the number when any entry of any wheel would change.
WHEEL_WRITER = "wheel/1"
#: Bytes of the modules of a wheel that are held from compiling to writing; torch and transformers have 55 MB.
_MAX_HELD = 96 << 20
#: Names in .dist-info that an installer writes itself.
_INSTALLERS = frozenset(("INSTALLER", "REQUESTED", "direct_url.json"))


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


class _Held:
    """A stream that is wanted twice, by the compiler and by the tar: the second time from memory."""

    def __init__(self, source: Callable[[], BinaryIO]) -> None:
        self._source = source
        self._data: bytes | None = None

    def open(self) -> BinaryIO:
        data, self._data = self._data, None
        if data is None:
            with self._source() as stream:
                data = self._data = stream.read()
        return io.BytesIO(data)


def _held(modules: Sequence[Entry]) -> dict[str, Entry]:
    """``modules`` by path, with their data held from compiling to writing, unless it is too much."""
    if sum(module.size for module in modules) > _MAX_HELD:
        return {module.path: module for module in modules}
    return {module.path: replace(module, open=_Held(module.open).open) if module.open else module for module in modules}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledWheel:
    """A wheel, every file of which has its place: all but RECORD and .pyc files, by tree path."""

    file: WheelFile
    digest: Digest
    where: Prefix
    placed: Mapping[str, _Placed]

    def entries(self, compiler: Compiler | None = None) -> Iterator[Entry]:
        """The files that it puts below the prefix; RECORD last, directories left out.

        Files with modes 0644 or 0755, root's; commands for its entry points; INSTALLER; with ``compiler``
        a .pyc beside each module that compiles. File data is checked against the wheel's RECORD as it is read,
        unless the lock says that it is not to be believed: the RECORD that is written is then true.

        Raises:
            BadRecord, DigestMismatch: from reading an entry, when its bytes are not those that RECORD names.
        """
        modules: dict[str, Entry] = {}
        stale: set[str] = set()
        if compiler is not None:
            modules = _held([item.entry() for item in self.placed.values() if _is_module(item.path, self.where)])
            # A .pyc that came along names an mtime that no image has.
            stale = {compiled_path(path, compiler.cache_tag) for path in modules}
        kept = [item for path, item in self.placed.items() if path not in stale]
        for item in kept:
            yield modules.get(item.path) or item.entry()
        record: list[tuple[str, Digest, int] | tuple[str, None, None]] = [
            (self.where.recorded(item.path), item.digest, item.size) for item in kept
        ]
        if compiler is not None:
            for entry in compile_entries(modules.values(), compiler):
                record.append((self.where.recorded(entry.path), None, None))
                yield entry
        record.append((self.where.recorded(self._record_path), None, None))
        yield _made(self._record_path, dump_record(record), executable=False).entry()

    def claims(self, *, compiled: bool) -> Mapping[str, Claim]:
        """What it puts at each path, known from its directory and RECORD alone.

        Of RECORD and .pyc files, whose bytes are not known yet, the claim names what they are made from.
        """
        claims = {item.path: item.claim() for item in self.placed.values()}
        claims[self._record_path] = Claim(self.digest, 0o644)
        tag = self.where.cache_tag
        modules = [path for path in claims if _is_module(path, self.where) and is_compilable(path, tag)]
        modules = modules if compiled else []
        claims.update({compiled_path(path, tag): Claim(claims[path].digest, 0o644, path) for path in modules})
        return claims

    @property
    def _record_path(self) -> str:
        return f"{self.where.site_packages}/{self.file.info}/RECORD"


def install(file: Path, wheel: Wheel, *, prefix: str = PREFIX, python: Interpreter) -> InstalledWheel:
    """``wheel``, at ``file``, below ``prefix``; only its directory and RECORD were read.

    Raises:
        BadWheel, BadArchive, BadRecord, BadEntryPoint, UnsafePath: it is not what it should be.
        NotThere: what the lock leaves out is not in it.
    """
    where = Prefix(root=prefix, python=python)
    opened = open_wheel(file, wheel)
    return InstalledWheel(file=opened, digest=wheel.digest, where=where, placed=_place(opened, wheel, where))


def wheel_entries(
    file: Path, wheel: Wheel, *, prefix: str = PREFIX, python: Interpreter, compiler: Compiler | None = None
) -> Iterator[Entry]:
    """The entries of ``wheel``, at ``file``, installed. Raises: as ``install`` and ``InstalledWheel.entries``."""
    yield from install(file, wheel, prefix=prefix, python=python).entries(compiler)


def wheel_claims(
    file: Path, wheel: Wheel, *, prefix: str = PREFIX, python: Interpreter, compiled: bool = True
) -> Mapping[str, Claim]:
    """What ``wheel``, at ``file``, puts at each path, once it is installed. Raises: as ``install``."""
    return install(file, wheel, prefix=prefix, python=python).claims(compiled=compiled)


def _place(opened: WheelFile, wheel: Wheel, where: Prefix) -> dict[str, _Placed]:
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
        base = where.scheme(key, wheel.name)
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
    for name in wheel.without:
        found = [path for path in placed if where.recorded(path) == name]
        if not found:
            raise NotThere(f"{opened.source}: leave-out: it installs no {name!r}")
        del placed[found[0]]
    installer = f"{where.site_packages}/{opened.info}/INSTALLER"
    placed[installer] = _made(installer, b"envbuilder\n", executable=False)
    _check_tree(placed, opened.source)
    return placed


def _from_archive(opened: WheelFile, member: Member, path: str, *, executable: bool) -> _Placed:
    digest = opened.digest(member)
    return _Placed(
        path=path, executable=executable, size=member.size, digest=digest, open=partial(opened.open, member, digest)
    )


def _script(opened: WheelFile, member: Member, path: str, where: Prefix) -> _Placed:
    # Always executable: it is there to be run, and tools that zip on Windows lose the bit.
    if not needs_interpreter(opened.archive.open(member).read(8)):
        return _from_archive(opened, member, path, executable=True)
    if member.size > MAX_TEXT:
        raise BadWheel(f"{opened.source}: {member.name}: a script of {member.size} bytes")
    return _made(path, with_interpreter(opened.read(member), where.interpreter), executable=True)


def _made(path: str, data: bytes, *, executable: bool) -> _Placed:
    return _Placed(
        path=path, executable=executable, size=len(data), digest=Digest.of(data), open=partial(io.BytesIO, data)
    )


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
