import random
import struct

import pytest

from envbuilder.layer.elf import ElfInfo, inspect_elf

NEEDED, SONAME, STRTAB, STRSZ, FLAGS_1 = 1, 14, 5, 10, 0x6FFFFFFB


def elf(*, kind=3, machine=62, soname="libx.so.1", needed=("libc.so.6",), flags_1=0):
    """One PT_LOAD over the whole file, a dynamic section at 256, its strings at 512."""
    strings = b"\0"
    entries = []
    for tag, names in ((NEEDED, needed), (SONAME, (soname,) if soname else ())):
        for name in names:
            entries.append((tag, len(strings)))
            strings += name.encode() + b"\0"
    entries += [(STRTAB, 0x1000 + 512), (STRSZ, len(strings)), (FLAGS_1, flags_1), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = 512 + len(strings)
    header = b"\x7fELF\2\1\1".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    headers = struct.pack("<IIQQQQQQ", 1, 4, 0, 0x1000, 0x1000, size, size, 4096)
    headers += struct.pack("<IIQQQQQQ", 2, 4, 256, 0x1100, 0x1100, len(dynamic), len(dynamic), 8)
    return (header + headers).ljust(256, b"\0") + dynamic.ljust(256, b"\0") + strings


def test_a_library_says_its_soname_what_it_needs_and_its_cache_flags():
    assert inspect_elf(elf(needed=("liba.so.1", "libb.so.2"))) == ElfInfo(
        machine=62, flags=0x0303, soname="libx.so.1", needed=("liba.so.1", "libb.so.2"), is_library=True
    )


@pytest.mark.parametrize(("machine", "flags"), [(62, 0x0303), (183, 0x0A03), (243, 0)])
def test_flags_are_those_of_the_machine(machine, flags):
    assert inspect_elf(elf(machine=machine)).flags == flags


@pytest.mark.parametrize(("kind", "flags_1"), [(2, 0), (3, 0x08000000)], ids=["fixed", "position-independent"])
def test_a_program_is_no_library(kind, flags_1):
    assert not inspect_elf(elf(kind=kind, flags_1=flags_1, soname="")).is_library


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"GROUP ( libc.so.6 )", elf()[:100], b"\x7fELF\1\1\1" + elf()[7:]])
def test_what_the_loader_would_not_load_is_no_object(data):
    assert inspect_elf(data) is None


def test_an_unterminated_or_foreign_soname_is_none():
    assert inspect_elf(elf(soname="\xe9")).soname == ""
    assert inspect_elf(elf(soname="x" * 300)).soname == ""


def test_hostile_bytes_never_raise():
    rng = random.Random(1)
    for _ in range(2000):
        data = bytearray(elf())
        for _ in range(rng.randint(1, 12)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        inspect_elf(bytes(data[: rng.randint(0, len(data))]) if rng.random() < 0.3 else bytes(data))
