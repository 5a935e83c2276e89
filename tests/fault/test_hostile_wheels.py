"""Wheels that lie: each must be refused by name, before anything is written."""

import io
import os
import stat
import struct
import zipfile
import zlib

import pytest

from envbuilder.digest import DigestMismatch
from envbuilder.errors import IntegrityError
from envbuilder.layer.wheel import wheel_entries
from envbuilder.layer.wheel_record import BadRecord
from envbuilder.layer.zip import Archive, BadArchive
from envbuilder.lock.model import Interpreter
from envbuilder.paths import UnsafePath
from envbuilder.testing.artifacts import locked_wheel, make_wheel, make_zip, store_file

PYTHON = Interpreter(version="3.13", tag="cp313")


@pytest.fixture
def read(tmp_path):
    """Everything that a wheel gives, read to the end."""

    def read_wheel(data, name="pkg"):
        for entry in wheel_entries(store_file(tmp_path, data), locked_wheel(name, data), python=PYTHON):
            if entry.open is not None:
                with entry.open() as stream:
                    while stream.read(1 << 16):
                        pass

    return read_wheel


@pytest.fixture
def opened(tmp_path):
    return lambda data: Archive(store_file(tmp_path, data), source="x.whl")


def deflated(name, data, **fields):
    """A zip with one deflated file; ``fields`` of its ZipInfo are changed in the central directory."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        item = zipfile.ZipInfo(name)
        archive.writestr(item, data, zipfile.ZIP_DEFLATED)
        for field, value in fields.items():
            setattr(item, field, value)
    return out.getvalue()


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../x", "a/../../x", "a/./b", "./a", "a//b", "..", "a/..", "x" * 256, "a/" * 2100 + "b"]
)
def test_a_name_that_is_not_a_plain_path_is_refused(opened, name):
    with pytest.raises(UnsafePath):
        opened(make_zip([(name, b"", 0o644)]))


def test_a_name_cut_short_by_a_nul_is_refused(opened):
    data = make_zip([("safe.py?.txt", b"", 0o644)]).replace(b"safe.py?", b"safe.py\0")

    with pytest.raises(UnsafePath, match="canonical"):
        opened(data)


def test_a_name_that_is_not_utf_8_is_refused(opened):
    data = make_zip([("pkg/é.py", b"", 0o644)]).replace("é".encode(), b"\xff\xfe")

    with pytest.raises(BadArchive, match="not a zip archive"):
        opened(data)


def test_a_climbing_path_in_a_data_scheme_is_refused(read):
    with pytest.raises(UnsafePath):
        read(make_wheel("pkg", files={"{data}/scripts/../../../etc/x": b""}))


def test_a_name_that_is_there_twice_is_refused(opened):
    with pytest.warns(UserWarning, match="Duplicate"):
        data = make_zip([("a", b"1", 0o644), ("a", b"2", 0o644)])

    with pytest.raises(BadArchive, match="twice"):
        opened(data)


def test_a_file_below_a_file_is_refused(read):
    with pytest.raises(UnsafePath, match="a file and a directory"):
        read(make_wheel("pkg", files={"a": b"", "a/b": b""}))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_links_and_devices_are_refused(opened, kind):
    data = deflated("x", b"/etc/passwd", external_attr=(kind | 0o777) << 16)

    with pytest.raises(BadArchive, match="link or device"):
        opened(data)


def test_names_that_differ_in_case_are_two_files(opened):
    assert set(opened(make_zip([("A", b"", 0o644), ("a", b"", 0o644)])).members) == {"A", "a"}


def test_a_bomb_is_refused_before_it_is_unpacked(opened):
    with pytest.raises(BadArchive, match="cannot become"):
        opened(deflated("zeros", bytes(1 << 20), file_size=1 << 40))


@pytest.mark.slow
def test_a_bomb_that_tells_its_size_is_refused_too(opened):
    with pytest.raises(BadArchive, match="over 100 times its own size"):
        opened(make_bomb(300 << 20))


def make_bomb(size):
    """A zip of one file of zeros, made block by block."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block, crc, parts = bytes(1 << 20), 0, []
    for _ in range(size >> 20):
        crc = zlib.crc32(block, crc)
        parts.append(packer.compress(block))
    data = b"".join([*parts, packer.flush()])
    fields = struct.pack("<4HIIIHH", 0, 8, 0, 33, crc, len(data), size, 1, 0)
    local = b"PK\3\4" + b"\x14\0" + fields + b"z"
    central = b"PK\1\2" + b"\x14\3\x14\0" + fields + struct.pack("<3HII", 0, 0, 0, 0, 0) + b"z"
    offset = len(local) + len(data)
    return local + data + central + struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 1, 1, len(central), offset, 0)


def test_a_file_that_unpacks_to_more_than_it_says_is_cut_off(opened):
    archive = opened(deflated("x", bytes(1 << 20), file_size=1000))

    with pytest.raises(BadArchive, match="want 1000 bytes, got more"):
        archive.read(archive.members["x"])
    assert archive.open(archive.members["x"]).read() == bytes(1000)


def test_files_that_overlap_are_refused(opened):
    data = make_zip([("a", b"one", 0o644), ("b", b"two", 0o644)])
    offset_of_b = data.rindex(b"PK\1\2") + 42  # APPNOTE.TXT 4.3.12
    data = data[:offset_of_b] + bytes(4) + data[offset_of_b + 4 :]

    with pytest.raises(BadArchive, match="overlaps"):
        opened(data)


def test_a_local_header_that_says_something_else_is_refused(opened):
    data = make_zip([("safe.py", b"x", 0o644)])
    archive = opened(data.replace(b"safe.py", b"evil.py", 1))

    with pytest.raises(BadArchive, match="local header"):
        archive.read(archive.members["safe.py"])


@pytest.mark.parametrize("change", [{"flag_bits": 1}, {"compress_type": 12}])
def test_encryption_and_other_compressions_are_refused(opened, change):
    with pytest.raises(BadArchive, match="encrypted or compressed"):
        opened(deflated("x", b"data", **change))


def test_damaged_data_is_refused(opened, read):
    data = deflated("x", os.urandom(100) + b"x" * 1000)
    archive = opened(data[:32] + b"\xff" * 40 + data[72:])

    with pytest.raises(BadArchive, match=r"x\.whl: x: "):
        archive.read(archive.members["x"])
    with pytest.raises(BadArchive, match="not a zip"):
        read(make_wheel("pkg")[:-30])


def test_every_truncation_of_a_wheel_is_refused(read):
    data = make_wheel("pkg", files={"pkg/a.py": b"abc"})

    for size in range(len(data)):
        with pytest.raises(IntegrityError):
            read(data[:size])


def test_a_changed_byte_of_a_file_is_found_by_record(read):
    good = make_wheel("pkg", files={"pkg/a.py": b"the source"})

    with pytest.raises(BadRecord, match=r"'pkg/a.py' is not the file that RECORD lists"):
        read(good.replace(b"the source", b"The source"))


def test_a_changed_byte_of_a_large_file_is_found_by_record(read):
    big = b"0123456789" * (1 << 19)
    good = make_wheel("pkg", files={"pkg/a.so": big})

    with pytest.raises(DigestMismatch, match=r"pkg-1.0-py3-none-any.whl: pkg/a\.so"):
        read(good.replace(b"0123456789", b"0123456780", 1))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "'pkg/a.py' is not in RECORD"),
        (b"pkg/a.py,,\n", "'pkg/a.py' is not in RECORD"),
        (b"pkg/a.py,md5=XXXX,1\n", "want a digest by sha256"),
        (b"pkg/a.py,sha256=XXXX,1\n", "not a sha256 digest"),
        (b"pkg/a.py,sha256=" + b"A" * 43 + b",1\npkg/a.py,sha256=" + b"B" * 43 + b",1\n", "twice and differs"),
        (b"pkg/a.py,sha256=" + b"A" * 43 + b",one\n", "RECORD"),
        (b"\xff", "RECORD"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(read, record, message):
    with pytest.raises(BadRecord, match=message):
        read(make_wheel("pkg", files={"pkg/a.py": b"x"}, record=record + _own_rows()))


def _own_rows():
    rows = make_wheel("pkg", files={})
    with zipfile.ZipFile(io.BytesIO(rows)) as archive:
        return archive.read("pkg-1.0.dist-info/RECORD")


def test_a_wheel_without_record_is_refused(read):
    with zipfile.ZipFile(io.BytesIO(make_wheel("pkg"))) as archive:
        members = [(name, archive.read(name), 0o644) for name in archive.namelist() if not name.endswith("RECORD")]

    with pytest.raises(BadRecord, match="no RECORD"):
        read(make_zip(members))


def test_an_empty_file_where_record_wants_data_is_refused(read):
    good = make_wheel("pkg", files={"pkg/a.py": b"x"})
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        record = archive.read("pkg-1.0.dist-info/RECORD").replace(b",1\n", b",\n")

    with pytest.raises(BadRecord, match=r"pkg/a.py"):
        read(make_wheel("pkg", files={"pkg/a.py": b""}, record=record))
