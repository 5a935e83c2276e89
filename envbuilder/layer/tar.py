"""The canonical tar: one set of entries, one byte string, file data aligned to blocks.

Format: POSIX.1-2001 pax interchange (``ustar`` headers, ``x`` records where they are
needed). docs/formats/layer.md has every rule; lazy_start.md 1.3 says why data is aligned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from envbuilder.digest import BLOCK_SIZE
from envbuilder.errors import IntegrityError, SpecError
from envbuilder.layer.elf import ElfInfo, inspect_elf
from envbuilder.layer.elf_scan import ElfScan
from envbuilder.layer.pax import ALIGNMENT, BLOCK, BrokenEntry, encode, header
from envbuilder.layer.tree import WHITEOUT, Entry, Placed, directory
from envbuilder.paths import UnsafePath, entry_path

#: Name of these rules in a layer's recipe: raise the number when any byte of any tar would change.
TAR_WRITER = "tar/2"
#: Bytes of a symbolic link's target: PATH_MAX without its NUL.
_LINK_MAX = 4095
#: Bytes of a large file that are copied at a time: what made them, their hashes and their chunk stay in a core's cache.
#: With zip.py's block a layer takes 3 percent less CPU time than with 1 MiB (cudnn; 128 KiB and 512 KiB are level).
_PIECE = 256 << 10

_NO_ELF = ElfInfo(machine=0, flags=0)


class PathClash(SpecError):
    """Two entries claim one path and are not the same directory, or one lies below a non-directory."""


class WrongSize(IntegrityError):
    """An entry's stream is shorter or longer than the size it was announced with."""


class Writable(Protocol):
    """Anything that takes all bytes of each ``write``."""

    def write(self, data: bytes | memoryview, /) -> object: ...


def write_tar(entries: Iterable[Entry], out: Writable) -> tuple[Placed, ...]:
    """Write ``entries`` to ``out`` as one canonical tar; return them as they lie in it, in its order.

    Sorted by the bytes of the path, part by part; missing parents are added as 0755 root; equal directories
    are written once. mtime is SOURCE_EPOCH_S, owner names are empty. Of hard links the first path
    has the data and the others link to it; in the result they repeat its size, offset and soname.
    The tar ends on a multiple of ALIGNMENT, and so does begin the data of every file.

    Raises:
        PathClash: two entries do not agree. UnsafePath: a path is not canonical or is a whiteout.
        BrokenEntry: a socket or a hard link to nothing. WrongSize: a stream is not ``entry.size`` bytes.
    """
    tree = _tree(entries)
    links = _links(tree)
    placed: dict[str, Placed] = {}
    at = 0
    for path in sorted(tree, key=_order):
        entry, leader = links.get(path, (tree[path], path))
        blocks = header(path, entry, at, hard_link="" if leader == path else leader)
        out.write(blocks)
        at += len(blocks)
        if leader != path:
            placed[path] = replace(placed[leader], path=path, link=leader)
            continue
        offset, elf, tail = 0, _NO_ELF, b""
        if entry.is_file and entry.size:
            offset = at
            elf, tail = _copy(entry, out)
            padding = -entry.size % BLOCK
            out.write(bytes(padding))
            at += entry.size + padding
        placed[path] = Placed(
            path=path,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            size=entry.size if entry.is_file else 0,
            link=entry.link if entry.is_symlink else "",
            device=entry.device,
            xattrs=entry.xattrs,
            offset=offset,
            soname=elf.soname,
            elf_flags=elf.flags,
            tail=tail,
        )
    out.write(bytes(2 * BLOCK + -(at + 2 * BLOCK) % ALIGNMENT))
    return tuple(placed.values())


def _order(path: str) -> bytes:
    # Part by part, so that nothing stands between a directory and what is in it ("a", "a/b", "a-b"): a reader
    # that leaves a directory sets its time and mode, and must not come back.
    return encode(path).replace(b"/", b"\0")


def _tree(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Entries by path, with every parent, each path once."""
    tree: dict[str, Entry] = {}
    for entry in entries:
        path = entry.path
        if entry_path(path, source="tar") != path:
            raise UnsafePath(f"tar: want a canonical path, got {path!r}")
        if path.rpartition("/")[2].startswith(WHITEOUT) and not entry.whiteout:
            raise UnsafePath(f"tar: {path!r} would hide files of the layers below (OCI whiteout)")
        if entry.is_symlink and (not entry.link or "\0" in entry.link or len(encode(entry.link)) > _LINK_MAX):
            raise BrokenEntry(f"tar: {path!r} is a symbolic link to {entry.link[:200]!r}, which is no path")
        other = tree.setdefault(path, entry)
        if other is not entry and not _same_directory(other, entry):
            raise PathClash(
                f"tar: {path!r} is there twice: {_describe(other)} and {_describe(entry)}",
                hint="Leave one of them out, or give the packages layers of their own.",
            )
    known: set[str] = set()
    for path in list(tree):
        parent = path.rpartition("/")[0]
        while parent and parent not in known:
            known.add(parent)
            if not tree.setdefault(parent, directory(parent)).is_directory:
                raise PathClash(f"tar: {path!r} lies below {parent!r}, which is {_describe(tree[parent])}")
            parent = parent.rpartition("/")[0]
    return tree


def _same_directory(one: Entry, two: Entry) -> bool:
    return (
        one.is_directory
        and two.is_directory
        and (one.mode, one.uid, one.gid, one.xattrs) == (two.mode, two.uid, two.gid, two.xattrs)
    )


def _describe(entry: Entry) -> str:
    what = "a directory" if entry.is_directory else "a symbolic link" if entry.is_symlink else "a file"
    return f"{what} (mode {entry.mode & 0o7777:04o}, {entry.uid}:{entry.gid}, {entry.size} bytes)"


def _links(tree: Mapping[str, Entry]) -> dict[str, tuple[Entry, str]]:
    """Of every path with hard links: the entry that has the data, and the path that will hold it."""
    groups: dict[str, list[str]] = {}
    for path, entry in tree.items():
        if entry.link and entry.is_file:
            target, seen = entry.link, {path}
            while (found := tree.get(target)) is not None and found.is_file and found.link and target not in seen:
                seen.add(target)
                target = found.link
            if found is None or not found.is_file or target in seen:
                raise BrokenEntry(f"tar: {path!r} is a hard link to {entry.link!r}, which is no file of this layer")
            groups.setdefault(target, [target]).append(path)
    return {path: (tree[target], min(paths, key=_order)) for target, paths in groups.items() for path in paths}


def _copy(entry: Entry, out: Writable) -> tuple[ElfInfo, bytes]:
    """Write the data of ``entry``; what ld.so.cache wants of a shared library, else nothing; ``Placed.tail``."""
    assert entry.open is not None, entry.path
    remaining = entry.size
    is_library = ".so" in entry.path.rpartition("/")[2]
    piece = BLOCK_SIZE if entry.size <= BLOCK_SIZE else _PIECE
    scan = ElfScan(entry.size) if is_library and entry.size > piece else None
    info: ElfInfo | None = None
    tail_size = entry.size % ALIGNMENT if entry.size % BLOCK == 0 else 0
    tail = b""
    with entry.open() as stream:
        while remaining:
            block = stream.read(min(piece, remaining))
            if not block:
                raise WrongSize(f"tar: {entry.path!r}: want {entry.size} bytes, got {entry.size - remaining}")
            if scan is not None:
                scan.feed(block)
            elif is_library and len(block) == entry.size:
                info = inspect_elf(block)
            out.write(block)
            remaining -= len(block)
            if tail_size:
                tail = (tail + block[-tail_size:])[-tail_size:]
        if stream.read(1):
            raise WrongSize(f"tar: {entry.path!r}: want {entry.size} bytes, got more")
    if scan is not None:
        info = scan.result(entry.open)
    return info if info is not None and info.is_library else _NO_ELF, tail
