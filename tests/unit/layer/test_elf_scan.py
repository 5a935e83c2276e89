import io
import random
import struct

import pytest

from envbuilder.layer.elf import inspect_elf
from envbuilder.layer.elf_scan import ElfScan
from envbuilder.layer.tar import write_tar
from envbuilder.layer.tree import file

SIZE = 3 << 20


def shared_object(*, headers=64, dynamic=SIZE - 4096, strings=SIZE - 2000, size=SIZE):
    """An ELF library of ``size`` random bytes, with its program headers, dynamic section and strings put anywhere."""
    data = bytearray(random.Random(5).randbytes(size))
    ident = b"\x7fELF\2\1\1".ljust(16, b"\0")
    data[:64] = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, headers, 0, 0, 64, 56, 2, 0, 0, 0)
    data[headers : headers + 112] = struct.pack("<IIQQQQQQ", 1, 4, 0, 0x1000, 0x1000, size, size, 4096) + struct.pack(
        "<IIQQQQQQ", 2, 4, dynamic, 0x1000 + dynamic, 0x1000 + dynamic, 64, 64, 8
    )
    data[dynamic : dynamic + 64] = struct.pack("<8Q", 5, 0x1000 + strings, 10, 200, 14, 1, 0, 0)
    data[strings : strings + 13] = b"\0libbig.so.7\0"
    return bytes(data)


def with_segment_last(data, *, headers=64, strings):
    """``data`` as patchelf leaves it: the segment that holds the strings comes behind PT_DYNAMIC."""
    load, dynamic = data[headers : headers + 56], data[headers + 56 : headers + 112]
    short = struct.pack("<IIQQQQQQ", 1, 4, 0, 0x1000, 0x1000, strings, strings, 4096)
    moved = struct.pack("<IIQQQQQQ", 1, 4, strings, 0x1000 + strings, 0x1000 + strings, 500, 500, 4096)
    assert load[:4] == b"\1\0\0\0"
    return data[:56] + struct.pack("<H", 3) + data[58:headers] + short + dynamic + moved + data[headers + 168 :]


def scanned(data, piece=1 << 20):
    opened = []

    def reopen():
        opened.append(1)
        return io.BytesIO(data)

    scan = ElfScan(len(data))
    for start in range(0, len(data), piece):
        scan.feed(data[start : start + piece])
    return scan.result(reopen), len(opened)


@pytest.mark.parametrize(
    ("places", "passes"),
    [
        ({"strings": 1000, "dynamic": SIZE - 4096}, 0),
        ({"strings": 1000, "dynamic": 2000}, 0),
        ({"strings": SIZE - 2000, "dynamic": 2000}, 0),
        ({"strings": 200_000, "dynamic": 500_000}, 2),
        ({"strings": 600_000, "dynamic": 500_000}, 2),
        ({"strings": 2000, "dynamic": 500_000}, 1),
        ({"strings": 1 << 20, "dynamic": SIZE - 4096}, 1),
        ({"headers": SIZE - 8000, "dynamic": 1 << 20, "strings": 2 << 20}, 3),
    ],
    ids=[
        "usual",
        "all at the beginning",
        "patchelf",
        "in the first block",
        "strings after, in the first block",
        "dynamic in the first block",
        "strings before",
        "headers at the end",
    ],
)
@pytest.mark.parametrize("piece", [1 << 20, 10_007])
def test_a_scan_says_what_inspecting_all_bytes_says(places, passes, piece):
    data = shared_object(**places)
    info, opened = scanned(data, piece)

    assert info == inspect_elf(data)
    assert info.soname == "libbig.so.7"
    assert opened <= passes


@pytest.mark.parametrize("piece", [1 << 20, 10_007])
def test_the_strings_may_lie_in_a_segment_behind_the_dynamic_one(piece):
    data = with_segment_last(shared_object(dynamic=1 << 20), strings=SIZE - 2000)
    info, _ = scanned(data, piece)

    assert info == inspect_elf(data)
    assert info.soname == "libbig.so.7"


@pytest.mark.parametrize(
    "data",
    [
        b"\x7fELF",
        bytes(SIZE),
        b"\x7fELF" + bytes(SIZE),
        shared_object()[: SIZE // 2],
        shared_object(headers=SIZE - 112, dynamic=64, strings=200),
        shared_object()[:64] + b"\xff" * SIZE,
    ],
    ids=["short", "zeros", "magic only", "truncated", "headers at the very end", "wild headers"],
)
def test_hostile_bytes_are_no_object_or_the_same_object(data):
    info, opened = scanned(data)

    assert info == inspect_elf(data)
    assert opened <= 3


def test_a_large_library_in_a_tar_has_its_soname():
    small = shared_object(size=8192, dynamic=4096, strings=6000)
    placed = write_tar([file("lib/libbig.so.7.1", shared_object()), file("lib/x.so", small)], io.BytesIO())

    assert [(p.soname, p.elf_flags) for p in placed] == [("", 0), ("libbig.so.7", 0x303), ("libbig.so.7", 0x303)]


def test_a_program_named_like_a_library_has_none():
    placed = write_tar([file("a.so.txt", b"text"), file("plain", shared_object())], io.BytesIO())

    assert [p.soname for p in placed] == ["", ""]
