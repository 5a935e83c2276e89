"""etc/ld.so.cache without ldconfig: which libraries it would find, the links it would make, its bytes.

Source: glibc 2.41 elf/ldconfig.c (search_dir), elf/cache.c (compare, save_cache), elf/stringtable.c,
sysdeps/generic/dl-cache.h (the "new" format, ``glibc-ld.so.cache1.1``).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from envbuilder.layer.debian.system import System

#: ld.so and ldconfig trust these after the configured ones, in this order (Debian's glibc: slibdir, libdir).
SYSTEM_DIRECTORIES = ("/lib", "/usr/lib")
#: Configuration that ldconfig starts from.
_CONF = "etc/ld.so.conf"
#: Depth of ``include`` lines: a file of the set that includes itself must end.
_MAX_INCLUDES = 8
_MAGIC = b"glibc-ld.so.cache1.1"
_LITTLE_ENDIAN = 2
_HEADER, _RECORD = struct.Struct("<20sIIB3xI12x"), struct.Struct("<iIIIQ")
_EXTENSION_MAGIC, _TAG_GENERATOR, _TAG_HWCAPS = 0xEAA42174, 0, 1
_EXTENSION, _SECTION = struct.Struct("<II"), struct.Struct("<IIII")
#: DL_CACHE_HWCAP_EXTENSION: the low bits are an index into the table of glibc-hwcaps names.
_HWCAP_EXTENSION = 1 << 62
_HWCAPS_DIRECTORY = "glibc-hwcaps"
#: What the cache says made it; ``ldconfig -p`` prints it.
_GENERATOR = b"envbuilder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One record of the cache: ``name`` is what programs ask for, ``path`` what is opened.

    hwcaps: name of the glibc-hwcaps subdirectory, "" for none.
    """

    name: str
    path: str
    flags: int
    hwcaps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What ldconfig would record, in cache order, and (tree path, target) of the links it would make."""

    libraries: tuple[Library, ...]
    links: tuple[tuple[str, str], ...]


def wanted(path: str) -> bool:
    """Whether the configuration of the loader is in the package file at ``path``."""
    return path == _CONF or path.startswith(f"{_CONF}.d/")


def configured_directories(read: Callable[[str], bytes], listdir: Callable[[str], Sequence[str]]) -> tuple[str, ...]:
    """Directories that etc/ld.so.conf names, in order; ``include`` takes ``<directory>/*.conf`` only, as Debian's."""
    return tuple(_conf_lines(_CONF, read, listdir, _MAX_INCLUDES))


def _conf_lines(
    path: str, read: Callable[[str], bytes], listdir: Callable[[str], Sequence[str]], depth: int
) -> Iterator[str]:
    for raw in read(path).decode("utf-8", "surrogateescape").splitlines():
        line = raw.partition("#")[0].strip()
        if line.startswith("/"):
            yield line.rstrip("/")
        elif line.startswith("include") and depth:
            parent, _, pattern = line.removeprefix("include").strip().lstrip("/").rpartition("/")
            for name in listdir(parent) if pattern == "*.conf" else ():
                if name.endswith(".conf") and not name.startswith("."):
                    yield from _conf_lines(f"{parent}/{name}", read, listdir, depth - 1)


def scan(system: System, directories: Iterable[str]) -> Scan:
    """What ldconfig would do with the tree of ``system`` and these absolute directories."""
    found: list[Library] = []
    links: list[tuple[str, str]] = []
    seen: set[str] = set()
    for directory in directories:
        real = system.follow(directory.lstrip("/"))
        if real is None or real in seen:
            continue
        seen.add(real)
        for name in system.listdir(f"{real}/{_HWCAPS_DIRECTORY}"):
            sub = f"{_HWCAPS_DIRECTORY}/{name}"
            for soname, (file, _, flags) in _libraries(system, f"{real}/{sub}").items():
                found.append(Library(name=soname, path=f"{directory}/{sub}/{file}", flags=flags, hwcaps=name))
        for soname, (file, is_link, flags) in _libraries(system, real).items():
            found.append(Library(name=soname, path=f"{directory}/{soname}", flags=flags))
            if not is_link and file != soname and f"{real}/{soname}" not in system.tree:
                links.append((f"{real}/{soname}", file))
    found.sort(key=functools.cmp_to_key(_compare))
    return Scan(libraries=tuple(found), links=tuple(sorted(links)))


def _libraries(system: System, directory: str) -> dict[str, tuple[str, bool, int]]:
    """For each soname (file name, whether it is a link, flags) of one directory, as search_dir decides."""
    best: dict[str, tuple[str, bool, int]] = {}
    for name in system.listdir(directory):
        if not _looks_like_library(name):
            continue
        real = system.follow(f"{directory}/{name}")
        placed = system.tree.get(real) if real is not None else None
        if real is None or placed is None or not placed.elf_flags:
            continue
        soname = placed.soname or name
        # A link named like the soname, or like its start up to ".so" (what ld(1) looks for), is recorded
        # under its own name; any other link is one more file with that soname.
        is_link = real != f"{directory}/{name}"
        is_link = is_link and (name == soname or (name.endswith(".so") and soname.startswith(name)))
        if is_link:
            soname = name
        known = best.get(soname)
        if known is None or (known[1] and not is_link) or (known[1] == is_link and _libcmp(known[0], name) < 0):
            best[soname] = (name, is_link, placed.elf_flags)
    return best


def _looks_like_library(name: str) -> bool:
    starts = name.startswith(("lib", "ld-", "ld.so.", "ld64.so."))
    return starts and ".so" in name and not name.endswith(("-gdb.py", ".dpkg-new", ".dpkg-tmp"))


def cache_bytes(libraries: Sequence[Library]) -> bytes:
    """The cache file of ``libraries``, which are in the order of ``scan``."""
    hwcaps = sorted({library.hwcaps for library in libraries if library.hwcaps})
    strings = [text for library in libraries for text in (library.name, library.path)] + hwcaps
    base = _HEADER.size + len(libraries) * _RECORD.size
    table, offsets = _string_table([text.encode("utf-8", "surrogateescape") for text in strings])
    place = {text: base + offsets[text.encode("utf-8", "surrogateescape")] for text in strings}
    end = base + len(table)
    extension = end + -end % 4
    records = b"".join(
        _RECORD.pack(
            library.flags,
            place[library.name],
            place[library.path],
            0,
            _HWCAP_EXTENSION | hwcaps.index(library.hwcaps) if library.hwcaps else 0,
        )
        for library in libraries
    )
    header = _HEADER.pack(_MAGIC, len(libraries), len(table), _LITTLE_ENDIAN, extension)
    return header + records + table + bytes(extension - end) + _extensions(extension, [place[name] for name in hwcaps])


def _extensions(offset: int, hwcaps: list[int]) -> bytes:
    """The sections after the strings: the names of hwcaps subdirectories, if any, and the generator."""
    table = struct.pack(f"<{len(hwcaps)}I", *hwcaps)
    count = 2 if hwcaps else 1
    start = offset + _EXTENSION.size + count * _SECTION.size
    sections = _SECTION.pack(_TAG_GENERATOR, 0, start + len(table), len(_GENERATOR))
    if hwcaps:
        sections += _SECTION.pack(_TAG_HWCAPS, 0, start, len(table))
    return _EXTENSION.pack(_EXTENSION_MAGIC, count) + sections + table + _GENERATOR


def _string_table(strings: list[bytes]) -> tuple[bytes, dict[bytes, int]]:
    """NUL-terminated strings, each once, with a string that ends another one inside it."""
    offsets: dict[bytes, int] = {}
    table = bytearray()
    previous = b""
    for text in sorted(set(strings), key=lambda item: bytes(255 - byte for byte in reversed(item)) + b"\xff"):
        if previous.endswith(text) and previous:
            offsets[text] = offsets[previous] + len(previous) - len(text)
        else:
            offsets[text] = len(table)
            table += text + b"\0"
        previous = text
    return bytes(table), offsets


def _compare(one: Library, two: Library) -> int:
    """Order of the cache: names downwards, then flags downwards, hwcaps before the plain one."""
    return (
        _libcmp(two.name, one.name)
        or two.flags - one.flags
        or (not one.hwcaps) - (not two.hwcaps)
        or (one.hwcaps > two.hwcaps) - (one.hwcaps < two.hwcaps)
    )


def _libcmp(one: str, two: str) -> int:
    """As _dl_cache_libcmp of glibc: strcmp with runs of digits compared as numbers; digits after other characters."""
    a, b = one.encode("utf-8", "surrogateescape") + b"\0", two.encode("utf-8", "surrogateescape") + b"\0"
    i = j = 0
    while a[i]:
        if a[i : i + 1].isdigit():
            if not b[j : j + 1].isdigit():
                return 1
            i, left = _number(a, i)
            j, right = _number(b, j)
            if left != right:
                return left - right
        elif b[j : j + 1].isdigit():
            return -1
        elif a[i] != b[j]:
            return a[i] - b[j]
        else:
            i, j = i + 1, j + 1
    return a[i] - b[j]


def _number(text: bytes, start: int) -> tuple[int, int]:
    end = start
    while text[end : end + 1].isdigit():
        end += 1
    return end, int(text[start:end])
