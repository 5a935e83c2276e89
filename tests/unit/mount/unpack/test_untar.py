"""Unpacking: whiteouts, what replaces what, and archives that want out of the tree."""

import contextlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from envbuilder.errors import IntegrityError
from envbuilder.layer.foreign_tar import BadLayer
from envbuilder.mount.unpack.untar import unpack_tar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners can only be set by root")


def tar(*members: tuple[str, str], **data: bytes) -> io.BytesIO:
    """A tar of (kind and link, name): ``"f"``, ``"d"``, ``"l:target"``, ``"h:target"``; contents by name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as file:
        for what, name in members:
            kind, _, link = what.partition(":")
            info = tarfile.TarInfo(name)
            info.mtime = 1
            info.type = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE, "h": tarfile.LNKTYPE}[kind]
            info.linkname = link
            info.mode = 0o755 if kind == "d" else 0o644
            content = data.get(name.rpartition("/")[2], b"data") if kind == "f" else b""
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    out.seek(0)
    return out


def listing(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_layers_lie_over_each_other(tmp_path):
    unpack_tar(tar(("f", "a/one"), ("f", "a/two")), tmp_path, source="t")
    unpack_tar(tar(("f", "a/two"), two=b"new"), tmp_path, source="t")

    assert listing(tmp_path) == {"a", "a/one", "a/two"}
    assert (tmp_path / "a/two").read_bytes() == b"new"


def test_a_whiteout_removes_what_lower_layers_had_and_not_what_its_own_layer_has(tmp_path):
    unpack_tar(tar(("f", "a/old"), ("f", "d/deep/x"), ("f", "b/keep")), tmp_path, source="t")
    unpack_tar(tar(("f", "a/old2"), ("f", "a/.wh.old"), ("f", "a/.wh.old2"), ("f", ".wh.d")), tmp_path, source="t")

    assert listing(tmp_path) == {"a", "a/old2", "b", "b/keep"}


def test_an_opaque_directory_hides_what_lower_layers_had(tmp_path):
    unpack_tar(tar(("f", "a/old"), ("f", "a/sub/x")), tmp_path, source="t")
    unpack_tar(tar(("d", "a"), ("f", "a/new"), ("f", "a/.wh..wh..opq")), tmp_path, source="t")

    assert listing(tmp_path) == {"a", "a/new"}


def test_a_file_takes_the_place_of_a_directory_and_a_directory_that_of_a_file(tmp_path):
    unpack_tar(tar(("f", "a/x"), ("f", "b")), tmp_path, source="t")
    unpack_tar(tar(("f", "a"), ("d", "b"), ("f", "b/y")), tmp_path, source="t")

    assert listing(tmp_path) == {"a", "b", "b/y"}


def test_entries_below_a_linked_directory_go_where_it_leads(tmp_path):
    unpack_tar(tar(("d", "usr"), ("d", "usr/lib"), ("l:usr/lib", "lib"), ("l:/usr/lib", "lib64")), tmp_path, source="t")
    unpack_tar(tar(("f", "lib/x"), ("f", "lib64/y")), tmp_path, source="t")

    assert {"usr/lib/x", "usr/lib/y"} < listing(tmp_path)
    assert (tmp_path / "lib").is_symlink()


def test_hard_links_share_one_file(tmp_path):
    unpack_tar(tar(("f", "a"), ("h:a", "b/c")), tmp_path, source="t")

    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b/c").stat().st_ino


def test_modes_and_times_are_the_archive_s(tmp_path):
    os.umask(0o077)
    try:
        unpack_tar(tar(("d", "d"), ("f", "d/f")), tmp_path, source="t")
    finally:
        os.umask(0o022)

    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "d/f").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "d").stat().st_mtime == 1


@pytest.mark.parametrize(
    "members",
    [
        [("f", "../escaped")],
        [("f", "a/../../escaped")],
        [("l:..", "up"), ("f", "up/escaped")],
        [("l:/", "root"), ("l:root/..", "up"), ("f", "up/escaped")],
        [("l:{outside}", "out"), ("f", "out/escaped")],
        [("l:{outside}/victim", "victim"), ("f", "victim")],
        [("h:../victim", "victim")],
        [("l:{outside}/victim", "to"), ("h:to", "linked"), ("f", "linked")],
        [("l:{outside}", "out"), ("f", "out/.wh.victim")],
    ],
)
def test_nothing_outside_the_tree_is_touched(tmp_path, members):
    tree, outside = tmp_path / "x/tree", tmp_path / "x"
    tree.mkdir(parents=True)
    (outside / "victim").write_text("untouched")
    before = listing(outside) - {"tree"}
    with contextlib.suppress(IntegrityError):
        unpack_tar(tar(*((kind.format(outside=outside), name) for kind, name in members)), tree, source="t")

    assert {path for path in listing(outside) if not path.startswith("tree")} == before
    assert (outside / "victim").read_text() == "untouched"


def pax(**records: bytes) -> bytes:
    """An extension header with records as they stand, whatever they hold; ``__`` is a dot."""
    body = b""
    for key, value in records.items():
        rest = len(key.replace("__", ".")) + len(value) + 3
        size = rest + len(str(rest + len(str(rest))))
        body += b"%d %s=%s\n" % (size, key.replace("__", ".").encode(), value)
    return header(type=b"x", size=b"%011o" % len(body)) + body + bytes(-len(body) % 512)


#: Where the fields of a ustar header begin.
FIELDS = {"name": 0, "mode": 100, "uid": 108, "size": 124, "mtime": 136, "type": 156, "link": 157, "major": 329}


def header(**fields: bytes) -> bytes:
    block = bytearray(512)
    for name, value in ({"name": b"file", "mode": b"0000644", "size": b"0" * 11, "type": b"0"} | fields).items():
        block[FIELDS[name] : FIELDS[name] + len(value)] = value
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    "archive",
    [
        header(uid=b"\x80" + b"\xff" * 7),
        header(mtime=b"\x80" + b"\xff" * 11),
        header(type=b"3", major=b"\x80" + b"\xff" * 7),
        header(type=b"3", major=b"\xff" * 8),
        header(type=b"Z"),
        header(size=b"\x80" + b"\xff" * 11),
        header(type=b"L", size=b"\x80" + b"\x7f" * 11),
        header(type=b"x", size=b"77777777777"),
        pax(uid=b"99999999999999999999") + header(),
        pax(uid=b"-5") + header(name=b"./", type=b"5"),
        pax(mtime=b"inf") + header(type=b"5"),
        pax(mtime=b"nan") + header(),
        pax(linkpath=b"a\0b") + header(type=b"2"),
        pax(linkpath=b"a\0b") + header(type=b"1"),
        pax(path=b"/".join([b"d"] * 1000)) + header(),
        pax(SCHILY__xattr__user__a=b"v" * 70_000) + header(),
        pax(SCHILY__xattr__=b"v") + header(),
        pax(GNU__sparse__map=b"x,y", GNU__sparse__size=b"z") + header(),
        b"x" * 512,
    ],
)
def test_headers_that_no_kernel_takes_are_refused(tmp_path, archive):
    with pytest.raises(IntegrityError):
        unpack_tar(io.BytesIO(archive + bytes(1024)), tmp_path, source="t")


def test_a_sparse_file_may_not_grow_from_nothing(tmp_path):
    info = tarfile.TarInfo("big")
    info.type, info.size = tarfile.REGTYPE, 512
    info.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,1", "GNU.sparse.name": "big"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(bytes(512)))
    out.seek(0)

    with pytest.raises(BadLayer, match="sparse file of 1099511627776 bytes"):
        unpack_tar(out, tmp_path, source="t")


@pytest.mark.slow
def test_in_a_user_name_space_files_of_owners_that_it_lacks_are_ours(tmp_path, require_tool):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        info = tarfile.TarInfo("unix_chkpwd")
        info.gid, info.mode, info.size = 42, 0o2755, 4
        file.addfile(info, io.BytesIO(b"data"))
    (tmp_path / "layer.tar").write_bytes(out.getvalue())
    tree = tmp_path / "tree"
    tree.mkdir()
    code = (
        "import sys, pathlib; from envbuilder.mount.unpack.untar import unpack_tar; "
        "unpack_tar(open(sys.argv[1], 'rb'), pathlib.Path(sys.argv[2]), source='t')"
    )
    words = [require_tool("unshare"), "--map-root-user", sys.executable, "-c", code, tmp_path / "layer.tar", tree]
    subprocess.run(words, check=True)

    assert (tree / "unix_chkpwd").read_bytes() == b"data"
    assert (tree / "unix_chkpwd").stat().st_gid == os.getegid()
