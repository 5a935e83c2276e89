import struct

import pytest

from envbuilder.layer import ldcache
from envbuilder.layer.debian.system import System, _children
from envbuilder.layer.ldcache import Library, cache_bytes, configured_directories, scan
from envbuilder.layer.tree import FILE, SYMLINK, Placed

AMD64 = 0x0303


def library(path, soname=""):
    return Placed(path=path, mode=FILE | 0o644, soname=soname, elf_flags=AMD64)


def link(path, target):
    return Placed(path=path, mode=SYMLINK | 0o777, link=target)


def system(*tree):
    paths = {item.path: item for item in tree}
    return System(controls={}, conffiles={}, contents={}, tree=paths, children=_children(paths))


def names(found):
    return [(item.name, item.path) for item in found.libraries]


def read_back(data):
    """(name, path, flags, hwcap) of each record, as ld.so reads them."""
    magic, count, strings, order = struct.unpack_from("<20sIIB", data)
    assert (magic, order) == (b"glibc-ld.so.cache1.1", 2)
    records = [struct.unpack_from("<iIIIQ", data, 48 + 24 * index) for index in range(count)]

    def text(at):
        assert at < 48 + 24 * count + strings
        return data[at : data.index(b"\0", at)].decode()

    return [(text(key), text(value), flags, hwcap) for flags, key, value, _, hwcap in records]


def test_a_library_is_recorded_under_its_soname_and_the_missing_link_is_made():
    found = scan(system(library("usr/lib/liba.so.1.2", "liba.so.1")), ["/usr/lib"])

    assert names(found) == [("liba.so.1", "/usr/lib/liba.so.1")]
    assert found.links == (("usr/lib/liba.so.1", "liba.so.1.2"),)


def test_links_that_packages_ship_are_kept():
    tree = [library("usr/lib/liba.so.1.2", "liba.so.1"), link("usr/lib/liba.so.1", "liba.so.1.2")]

    assert scan(system(*tree), ["/usr/lib"]).links == ()


def test_the_link_for_the_linker_is_recorded_too():
    tree = [library("usr/lib/liba.so.1.2", "liba.so.1"), link("usr/lib/liba.so", "liba.so.1.2")]

    assert names(scan(system(*tree), ["/usr/lib"])) == [
        ("liba.so.1", "/usr/lib/liba.so.1"),
        ("liba.so", "/usr/lib/liba.so"),
    ]


def test_a_link_of_another_name_is_one_more_file_of_its_soname():
    tree = [library("usr/lib/libL.so.19.1", "libL.so.19.1"), link("usr/lib/libL-19.so", "libL.so.19.1")]

    assert names(scan(system(*tree), ["/usr/lib"])) == [("libL.so.19.1", "/usr/lib/libL.so.19.1")]


def test_the_newer_of_two_files_with_one_soname_gets_the_link():
    tree = [library("usr/lib/liba.so.1.9", "liba.so.1"), library("usr/lib/liba.so.1.10", "liba.so.1")]

    assert scan(system(*tree), ["/usr/lib"]).links == (("usr/lib/liba.so.1", "liba.so.1.10"),)


def test_a_directory_reached_twice_counts_once_under_its_first_name():
    tree = [link("lib", "usr/lib"), library("usr/lib/x/liba.so.1", "liba.so.1")]

    assert names(scan(system(*tree), ["/lib/x", "/usr/lib/x"])) == [("liba.so.1", "/lib/x/liba.so.1")]


def test_what_is_no_library_is_left_out():
    tree = [
        Placed(path="usr/lib/libscript.so", mode=FILE | 0o644),
        library("usr/lib/plugin.so"),
        library("usr/lib/liba.so.1-gdb.py"),
        link("usr/lib/libgone.so.1", "nowhere"),
    ]

    assert scan(system(*tree), ["/usr/lib", "/missing"]).libraries == ()


def test_a_library_without_soname_is_recorded_by_its_name():
    assert names(scan(system(library("usr/lib/libp.so")), ["/usr/lib"])) == [("libp.so", "/usr/lib/libp.so")]


def test_hwcaps_directories_come_before_the_plain_one():
    tree = [
        library("usr/lib/liba.so.1", "liba.so.1"),
        library("usr/lib/glibc-hwcaps/x86-64-v3/liba.so.1.2", "liba.so.1"),
        library("usr/lib/glibc-hwcaps/x86-64-v2/liba.so.1", "liba.so.1"),
    ]
    found = scan(system(*tree), ["/usr/lib"])

    assert [(item.hwcaps, item.path) for item in found.libraries] == [
        ("x86-64-v2", "/usr/lib/glibc-hwcaps/x86-64-v2/liba.so.1"),
        ("x86-64-v3", "/usr/lib/glibc-hwcaps/x86-64-v3/liba.so.1.2"),
        ("", "/usr/lib/liba.so.1"),
    ]
    assert [hwcap for *_, hwcap in read_back(cache_bytes(found.libraries))] == [1 << 62, 1 << 62 | 1, 0]


@pytest.mark.parametrize("order", [("liba.so.10", "liba.so.9"), ("libb.so.1", "liba.so.1"), ("lib1.so", "liba.so")])
def test_names_go_downwards_with_numbers_as_numbers(order):
    tree = [library(f"usr/lib/{name}", name) for name in sorted(order)]

    assert [item.name for item in scan(system(*tree), ["/usr/lib"]).libraries] == list(order)


def test_the_cache_reads_back():
    libraries = [
        Library(name="libb.so.1", path="/usr/lib/libb.so.1", flags=AMD64),
        Library(name="liba.so.1", path="/opt/liba.so.1", flags=AMD64),
    ]

    assert read_back(cache_bytes(libraries)) == [(item.name, item.path, AMD64, 0) for item in libraries]


def test_a_name_at_the_end_of_a_path_is_stored_once():
    data = cache_bytes([Library(name="liba.so.1", path="/usr/lib/liba.so.1", flags=AMD64)])

    assert data.count(b"liba.so.1\0") == 1


def test_an_empty_cache_is_a_cache():
    assert read_back(cache_bytes([])) == []


def test_the_configuration_is_followed_in_order_without_loops():
    files = {
        "etc/ld.so.conf": b"# head\n/first/\ninclude /etc/ld.so.conf.d/*.conf\n/last",
        "etc/ld.so.conf.d/a.conf": b"/a # comment\ninclude /etc/ld.so.conf.d/*.conf\n",
        "etc/ld.so.conf.d/b.txt": b"/b\n",
    }
    found = configured_directories(
        lambda path: files.get(path, b""),
        lambda path: [name.split("/")[-1] for name in files if name.startswith(path + "/")],
    )

    assert found[:2] == ("/first", "/a")
    assert found[-1] == "/last"
    assert "/b" not in found
    assert set(found) == {"/first", "/a", "/last"}


def test_only_the_loaders_own_configuration_is_wanted():
    assert ldcache.wanted("etc/ld.so.conf.d/x.conf")
    assert not ldcache.wanted("etc/ld.so.preload")
