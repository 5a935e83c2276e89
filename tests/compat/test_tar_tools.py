"""GNU tar reads every layer as it was meant."""

import os
import stat
from pathlib import Path

import pytest

from envbuilder.layer import tree
from envbuilder.layer.tree import Entry, directory, file, symlink
from envbuilder.proc import run
from envbuilder.testing.layers import layer_of
from envbuilder.testing.trees import many_names

pytestmark = pytest.mark.slow

ENTRIES = [
    directory("private", 0o700),
    file("private/empty", b""),
    file("bin/tool", b"#!/bin/sh\n" * 3000, 0o4755),
    Entry(path="bin/other", mode=tree.FILE | 0o755, link="bin/tool"),
    file("d/" + "long-" * 40 + "/" + "n" * 200, b"pax"),
    file("d/naïve +-#name", b"x" * 4096),
    file("d/large", bytes(range(256)) * 5000),
    symlink("d/link", "../" + "t" * 300),
    Entry(path="d/pipe", mode=stat.S_IFIFO | 0o600),
    directory("tmp", 0o1777),
    file("d-after", b"sorts before d/ by bytes of the whole path"),
    *many_names("many", 50),
]


@pytest.fixture
def blob(tmp_path):
    built = layer_of(ENTRIES)
    path = tmp_path / "layer.tar.zst"
    path.write_bytes(built.blob)
    return built, path


def test_gnu_tar_lists_every_entry(blob, require_tool):
    built, path = blob
    listed = run(
        [require_tool("tar"), "--zstd", "-tf", path, "--quoting-style=literal"],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
    )

    assert listed.stderr == b""
    assert [line.rstrip("/") for line in listed.stdout.decode().splitlines()] == [p.path for p in built.layer.placed]


def test_gnu_tar_extracts_what_was_written(blob, tmp_path, require_tool):
    built, path = blob
    root = tmp_path / "root"
    root.mkdir()
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    said = run([require_tool("tar"), "--zstd", "-xpf", path, "-C", root], env=env)

    assert said.stderr == b""
    for placed in built.layer.placed:
        seen = (root / placed.path).lstat()
        assert seen.st_mode == placed.mode
        assert seen.st_mtime == 1
        if os.geteuid() == 0:
            assert (seen.st_uid, seen.st_gid) == (0, 0)
        if stat.S_ISREG(placed.mode):
            data = built.tar[placed.offset : placed.offset + placed.size]
            assert (root / placed.path).read_bytes() == data
        elif stat.S_ISLNK(placed.mode):
            assert os.readlink(root / placed.path) == placed.link  # noqa: PTH115  the target as it stands
    assert (root / "bin/tool").stat().st_ino == (root / "bin/other").stat().st_ino


def test_zstd_reads_the_frames_and_passes_over_the_index(blob, require_tool):
    built, path = blob

    assert run([require_tool("zstd"), "-dcq", path]).stdout == built.tar
    run([require_tool("zstd"), "-tq", path])


def test_gnu_tar_keeps_extended_attributes(tmp_path, require_tool):
    entry = Entry(path="f", mode=tree.FILE | 0o644, xattrs=(("user.note", b"a=b\n"),))
    (tmp_path / "x.tar").write_bytes(layer_of([entry]).tar)
    try:
        os.setxattr(tmp_path / "x.tar", "user.probe", b"1")
    except OSError as error:
        pytest.skip(f"this file system has no user attributes: {error}")
    run([require_tool("tar"), "--xattrs", "-xf", tmp_path / "x.tar", "-C", tmp_path])

    assert os.getxattr(Path(tmp_path) / "f", "user.note") == b"a=b\n"
