"""What ld.so and ldconfig read in an ELF shared object: soname, needed libraries, cache flags.

The bytes are hostile: every offset is checked against the data, every table is bounded.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap

#: elf.h
_ELFCLASS64, _ELFDATA2LSB, _EV_CURRENT = 2, 1, 1
_ET_EXEC, _ET_DYN = 2, 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_FLAGS_1 = 0, 1, 5, 10, 14, 0x6FFFFFFB
_DF_1_PIE = 0x08000000
_EHDR_SIZE, _PHDR_SIZE, _DYN_SIZE = 64, 56, 16
#: Program headers and dynamic entries that are looked at; real objects have some 15 and 40.
_MAX_PHDRS, _MAX_DYNAMIC = 512, 4096
#: Bytes of a soname: NAME_MAX, for ldconfig makes a file name of it.
_MAX_NAME = 255

#: e_machine -> FLAG_ELF_LIBC6 | the ABI's FLAG (glibc 2.41 sysdeps/generic/ldconfig.h).
CACHE_FLAGS = {62: 0x0303, 183: 0x0A03}  # EM_X86_64, EM_AARCH64


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfInfo:
    """A 64-bit little-endian ELF executable or shared object.

    flags: as a record of ld.so.cache wants them; 0 for a machine that is not in ``CACHE_FLAGS``.
    is_library: ET_DYN without DF_1_PIE, so that a position-independent program is none.
    """

    machine: int
    flags: int
    soname: str = ""
    needed: tuple[str, ...] = ()
    is_library: bool = False


def inspect_elf(data: Buffer) -> ElfInfo | None:
    """What ``data`` says about itself; None when it is no well-formed object that ld.so could load.

    Only headers and the dynamic section with its strings are touched, so an ``mmap`` of a large
    library costs a few pages. Never raises on hostile bytes.

    Source: System V gABI chapters 4 and 5.
    """
    if len(data) < _EHDR_SIZE or bytes(data[:7]) != b"\x7fELF" + bytes((_ELFCLASS64, _ELFDATA2LSB, _EV_CURRENT)):
        return None
    kind, machine, version = struct.unpack_from("<HHI", data, 16)
    (phoff,) = struct.unpack_from("<Q", data, 32)
    phentsize, phnum = struct.unpack_from("<HH", data, 54)
    if kind not in (_ET_EXEC, _ET_DYN) or version != _EV_CURRENT or phentsize != _PHDR_SIZE or phnum > _MAX_PHDRS:
        return None
    if phoff + phnum * _PHDR_SIZE > len(data):
        return None
    loads: list[tuple[int, int, int]] = []
    dynamic = (0, 0)
    for index in range(phnum):
        p_type, _, offset, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", data, phoff + index * _PHDR_SIZE)
        if offset + filesz > len(data):
            if p_type in (_PT_LOAD, _PT_DYNAMIC):
                return None
        elif p_type == _PT_LOAD:
            loads.append((vaddr, offset, filesz))
        elif p_type == _PT_DYNAMIC:
            dynamic = (offset, filesz)
    flags = CACHE_FLAGS.get(machine, 0)
    entries = _dynamic_entries(data, *dynamic)
    values = dict(entries)
    strings = _file_range(loads, values.get(_DT_STRTAB, -1), values.get(_DT_STRSZ, 0))
    pie = bool(values.get(_DT_FLAGS_1, 0) & _DF_1_PIE)
    return ElfInfo(
        machine=machine,
        flags=flags,
        soname=_string(data, strings, values[_DT_SONAME]) if _DT_SONAME in values else "",
        needed=tuple(name for tag, at in entries if tag == _DT_NEEDED and (name := _string(data, strings, at))),
        is_library=kind == _ET_DYN and bool(entries) and not pie,
    )


def _dynamic_entries(data: Buffer, offset: int, size: int) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for index in range(min(size // _DYN_SIZE, _MAX_DYNAMIC)):
        tag, value = struct.unpack_from("<QQ", data, offset + index * _DYN_SIZE)
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    return entries


def _file_range(loads: list[tuple[int, int, int]], address: int, size: int) -> tuple[int, int]:
    """File offset and end of ``size`` bytes at a virtual address; (0, 0) when no segment holds them."""
    for vaddr, offset, filesz in loads:
        if vaddr <= address and address + size <= vaddr + filesz:
            return offset + address - vaddr, offset + address - vaddr + size
    return 0, 0


def _string(data: Buffer, strings: tuple[int, int], index: int) -> str:
    """The string at ``index`` of the string table; "" when it is outside, unterminated, too long or not ASCII."""
    start, end = strings[0] + index, strings[1]
    raw, terminator, _ = bytes(data[start : min(start + _MAX_NAME + 1, end)]).partition(b"\0")
    return raw.decode() if start < end and terminator and raw.isascii() else ""
