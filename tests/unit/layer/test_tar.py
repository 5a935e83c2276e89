import io
import tarfile
from dataclasses import replace

import pytest

from envbuilder.layer import tree
from envbuilder.layer.pax import ALIGNMENT, BrokenEntry, header
from envbuilder.layer.tar import PathClash, WrongSize, write_tar
from envbuilder.layer.tree import Entry, directory, file, symlink
from envbuilder.paths import UnsafePath
from envbuilder.testing.layers import tar_of


def read(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {info.name: info for info in tar}


def hard_link(path, target):
    return Entry(path=path, mode=tree.FILE | 0o644, link=target)


def test_entries_are_sorted_part_by_part_and_parents_are_added():
    names = list(read(tar_of([file("b/x", b"1"), file("a-b", b"2"), file("a/é", b"3"), file("a/z", b"4")])))

    assert names == ["a", "a/z", "a/é", "a-b", "b", "b/x"]


def test_data_of_every_file_and_the_end_are_aligned():
    entries = [file(f"f{size}", bytes(size)) for size in (1, 511, 512, 513, 4095, 4096, 4097, 20_000)]
    out = io.BytesIO()
    placed = write_tar(entries, out)
    data = out.getvalue()

    assert [item.offset % ALIGNMENT for item in placed] == [0] * 8
    assert len(data) % ALIGNMENT == 0
    assert {name: info.offset_data for name, info in read(data).items()} == {p.path: p.offset for p in placed}


def test_attributes_are_kept_and_times_and_owner_names_are_not():
    entry = Entry(path="p", mode=tree.FILE | 0o4755, uid=3_000_000, gid=7, size=1, open=lambda: io.BytesIO(b"x"))
    info = read(tar_of([entry]))["p"]

    assert (info.mode, info.uid, info.gid, info.mtime) == (0o4755, 3_000_000, 7, 1)
    assert (info.uname, info.gname) == ("", "")


def test_long_and_foreign_names_links_and_attributes_come_back():
    long, foreign = "d/" + "n" * 200, "d/näme"
    xattr = (("user.note", b"a=b\n\0c"),)
    entries = [replace(file(long, b"1"), xattrs=xattr), file(foreign, b"2"), symlink("s", "t" * 300)]
    found = read(tar_of(entries))

    assert set(found) == {"d", long, foreign, "s"}
    assert found["s"].linkname == "t" * 300
    assert found[long].pax_headers["SCHILY.xattr.user.note"] == "a=b\n\0c"


def test_a_name_that_is_no_utf8_keeps_its_bytes():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")

    assert b"caf\xe9" in tar_of([file(name, b"x")])
    assert list(read(tar_of([file(name, b"x")]))) == [name]


def test_special_files_are_written():
    entries = [
        Entry(path="null", mode=0o020666, device=(1, 3)),
        Entry(path="disk", mode=0o060660, device=(259, 300)),
        Entry(path="pipe", mode=0o010600),
    ]
    found = read(tar_of(entries))

    assert [(i.type, i.devmajor, i.devminor) for i in found.values()] == [(b"4", 259, 300), (b"3", 1, 3), (b"6", 0, 0)]


def test_the_first_name_of_an_inode_has_the_data_whoever_links_to_whom():
    out = io.BytesIO()
    placed = {p.path: p for p in write_tar([file("m", b"data"), hard_link("a", "m"), hard_link("z", "a")], out)}
    found = read(out.getvalue())

    assert {name: (i.type, i.linkname) for name, i in found.items()} == {
        "a": (b"0", ""),
        "m": (b"1", "a"),
        "z": (b"1", "a"),
    }
    assert [(placed[n].link, placed[n].size) for n in "amz"] == [("", 4), ("a", 4), ("a", 4)]
    assert placed["m"].offset == placed["z"].offset == placed["a"].offset > 0


@pytest.mark.parametrize("links", [[("a", "b"), ("b", "a")], [("a", "none")], [("a", "a")]])
def test_a_hard_link_to_no_file_is_refused(links):
    with pytest.raises(BrokenEntry, match="hard link"):
        tar_of([hard_link(path, target) for path, target in links])


def test_equal_directories_are_written_once():
    assert tar_of([directory("a"), directory("a"), file("a/b", b"")]) == tar_of([file("a/b", b"")])


@pytest.mark.parametrize(
    "entries",
    [
        [file("a", b"1"), file("a", b"1")],
        [directory("a"), directory("a", 0o700)],
        [directory("a"), symlink("a", "b")],
        [symlink("lib", "usr/lib"), file("lib/x", b"1")],
    ],
    ids=["two files", "two modes", "directory and link", "below a link"],
)
def test_entries_that_disagree_are_refused(entries):
    with pytest.raises(PathClash):
        tar_of(entries)


@pytest.mark.parametrize("path", ["/a", "a/../b", "a//b", "./a", "", "a/", "a/.wh.b", ".wh..wh..opq"])
def test_paths_that_are_not_canonical_or_hide_others_are_refused(path):
    with pytest.raises(UnsafePath):
        tar_of([file(path, b"")])


@pytest.mark.parametrize("data", [b"", b"abc", b"abcde"])
def test_a_stream_of_another_size_is_refused(data):
    entry = Entry(path="a", mode=tree.FILE | 0o644, size=4, open=lambda: io.BytesIO(data))

    with pytest.raises(WrongSize, match="want 4 bytes"):
        tar_of([entry])


@pytest.mark.parametrize(
    "entry",
    [Entry(path="s", mode=0o140755), symlink("l", ""), symlink("l", "a\0b"), symlink("l", "x" * 4096)],
    ids=["socket", "empty link", "NUL in link", "long link"],
)
def test_what_no_tar_can_hold_is_refused(entry):
    with pytest.raises(BrokenEntry):
        tar_of([entry])


def test_an_attribute_that_no_record_can_name_is_refused():
    with pytest.raises(BrokenEntry, match="extended attribute"):
        tar_of([replace(file("a", b""), xattrs=(("user.a=b", b""),))])


def test_a_size_beyond_the_octal_field_stands_in_a_record():
    entry = Entry(path="huge", mode=tree.FILE | 0o644, size=8**11, open=io.BytesIO)
    blocks = header("huge", entry, 0)

    assert b" size=8589934592\n" in blocks
    assert len(blocks) == ALIGNMENT
