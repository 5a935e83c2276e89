import os
import shutil
import stat

import pytest

from envbuilder.layer.deb import InPrefix, WrongDeb, control_of, deb_entries, merged
from envbuilder.layer.tree import FILE, Entry, directory, file, symlink
from envbuilder.testing.debs import deb_of, make_deb


@pytest.fixture
def unpack(tmp_path):
    def entries(data, **lock):
        path = tmp_path / "tiny.deb"
        path.write_bytes(data)
        return {entry.path: entry for entry in deb_entries(path, deb_of(data, **lock))}

    return entries


def content(entry):
    return entry.open().read() if entry.open else b""


@pytest.mark.parametrize("compression", ["xz", "zst", "gz", ""])
def test_a_package_comes_out_with_owners_modes_and_data(unpack, compression):
    setgid = Entry(path="usr/sbin/check", mode=FILE | 0o2755, gid=42, size=3, open=file("x", b"abc").open)
    found = unpack(make_deb([directory("usr"), setgid, file("usr/share/empty", b"")], compression=compression))

    assert (found["usr/sbin/check"].mode, found["usr/sbin/check"].gid) == (stat.S_IFREG | 0o2755, 42)
    assert content(found["usr/sbin/check"]) == b"abc"
    assert content(found["usr/sbin/check"]) == b"abc", "data can be opened again"
    assert found["usr/share/empty"].size == 0
    assert found["usr"].is_directory


def test_paths_outside_usr_land_in_usr_and_links_with_them(unpack):
    hard = Entry(path="sbin/b", mode=FILE | 0o755, link="lib/x86_64-linux-gnu/a")
    found = unpack(make_deb([directory("lib"), file("lib/x86_64-linux-gnu/a", b"1"), hard, symlink("bin/c", "/bin/d")]))

    assert found["usr/lib"].is_directory
    assert content(found["usr/lib/x86_64-linux-gnu/a"]) == b"1"
    assert found["usr/sbin/b"].link == "usr/lib/x86_64-linux-gnu/a"
    assert found["usr/bin/c"].link == "/bin/d", "what a symbolic link says is kept"


def test_the_links_to_usr_themselves_stay(unpack):
    assert unpack(make_deb([symlink("bin", "usr/bin")]))["bin"].link == "usr/bin"


def test_directories_that_become_links_later_are_left_out(unpack):
    found = unpack(make_deb([directory("var/run"), directory("var/run/x")]))

    assert "var/run" not in found
    assert found["run/x"].is_directory


@pytest.mark.parametrize(
    ("path", "where"),
    [("lib/a", "usr/lib/a"), ("lib64", "usr/lib64"), ("library/a", "library/a"), ("var/lock/a", "run/lock/a")],
)
def test_merged_paths(path, where):
    assert merged(path) == where


def test_dpkg_finds_its_files(unpack):
    deb = make_deb(
        [directory("etc"), file("etc/x.conf", b"")], members={"postinst": "#!/bin/sh\n", "conffiles": "/etc/x.conf\n"}
    )
    found = unpack(deb)

    assert content(found["var/lib/dpkg/info/tiny.list"]) == b"/.\n/etc\n/etc/x.conf\n"
    assert content(found["var/lib/dpkg/info/tiny.conffiles"]) == b"/etc/x.conf\n"
    assert stat.S_IMODE(found["var/lib/dpkg/info/tiny.postinst"].mode) == 0o755
    assert "var/lib/dpkg/info/tiny.control" not in found


def test_packages_that_install_beside_another_architecture_carry_theirs(unpack):
    deb = make_deb(architecture="amd64", fields={"Multi-Arch": "same"})

    assert "var/lib/dpkg/info/tiny:amd64.list" in unpack(deb, architecture="amd64")


@pytest.mark.parametrize("lock", [{"name": "other"}, {"version": "2"}, {"architecture": "amd64"}])
def test_another_package_than_the_locked_one_is_refused(unpack, lock):
    with pytest.raises(WrongDeb, match=r"want .*, got"):
        unpack(make_deb(), **lock)


def test_long_names_come_whole(unpack):
    path = "usr/share/" + "d" * 120 + "/" + "f" * 120

    assert content(unpack(make_deb([file(path, b"x")]))[path]) == b"x"


def test_a_long_name_that_a_header_cuts_off_behind_a_slash_is_still_a_files(unpack):
    path = "usr/share/" + "x/" * 60 + "deep"  # "./", and the header's hundred bytes end with a slash

    assert content(unpack(make_deb([file(path, b"x")]))[path]) == b"x"


def test_dpkg_deb_packs_what_we_read(tmp_path, require_tool):
    from envbuilder.proc import run

    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: A <a@b.c>\nDescription: x\n"
    )
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/a").write_bytes(b"#!/bin/sh\n")
    os.link(tree / "usr/bin/a", tree / "usr/bin/b")
    shutil.copymode("/bin/sh", tree / "usr/bin/a")
    deb = tmp_path / "tiny.deb"
    run([require_tool("dpkg-deb"), "--root-owner-group", "-b", tree, deb])

    found = {entry.path: entry for entry in deb_entries(deb, deb_of(deb.read_bytes()))}

    assert control_of(deb).fields["Maintainer"] == "A <a@b.c>"
    first, second = found["usr/bin/a"], found["usr/bin/b"]
    assert {first.link, second.link} in ({"", "usr/bin/a"}, {"", "usr/bin/b"})


@pytest.mark.parametrize(
    "entry",
    [
        file("opt/env/lib/x", b""),
        directory("opt/env"),
        symlink("opt/env", "/usr"),
        symlink("opt", "usr"),
        Entry(path="usr/x", mode=FILE | 0o644, link="opt/env/x"),
    ],
    ids=["a file in it", "itself", "a link in its place", "a link above it", "a hard link"],
)
def test_a_package_that_reaches_into_the_directory_of_the_python_packages_is_refused(unpack, entry):
    victim = [file("opt/env/x", b"")] if entry.path == "usr/x" else []

    with pytest.raises(InPrefix, match="tiny has it"):
        unpack(make_deb([*victim, entry]))


def test_packages_may_have_other_things_in_opt(unpack):
    assert {"opt", "opt/environment/x"} <= {*unpack(make_deb([directory("opt"), file("opt/environment/x", b"")]))}
