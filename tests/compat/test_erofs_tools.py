"""erofs-utils accept the metadata, and find every file's bytes in the layers' tars."""

import os
import re

import pytest
from hypothesis import HealthCheck, given, settings

from envbuilder.layer.merge import merge
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.proc import run
from envbuilder.testing.layers import layer_of
from envbuilder.testing.trees import many_names, trees

pytestmark = pytest.mark.slow


@pytest.fixture
def image(tmp_path):
    layers = [
        layer_of([*many_names("many", 3000), symlink("s", "t" * 3000), directory("empty")]),
        layer_of([file("many/00000", b"later"), file("a/b/c", b"x" * 10_000), file("exact", b"y" * 5120)]),
    ]
    (tmp_path / "metadata").write_bytes(erofs_metadata([layer.layer for layer in layers]))
    devices = []
    for number, layer in enumerate(layers):
        (tmp_path / f"device{number}").write_bytes(layer.tar)
        devices.append(f"--device={tmp_path / f'device{number}'}")
    return [*devices, tmp_path / "metadata"]


def test_fsck_accepts_the_metadata(image, require_tool):
    said = run([require_tool("fsck.erofs"), *image], check=False)

    assert (said.status, said.stderr) == (0, b"")


def test_fsck_extracts_the_merged_tree(image, tmp_path, require_tool):
    run([require_tool("fsck.erofs"), f"--extract={tmp_path / 'root'}", *image])
    root = tmp_path / "root"

    assert len(list((root / "many").iterdir())) == 3000
    assert (root / "many/00000").read_bytes() == b"later"
    assert (root / "a/b/c").read_bytes() == b"x" * 10_000
    assert (root / "exact").read_bytes() == b"y" * 5120
    assert os.readlink(root / "s") == "t" * 3000  # noqa: PTH115  the target as it stands


def test_dump_reads_the_super_block_and_a_file(image, require_tool):
    dump = require_tool("dump.erofs")
    text = run([dump, "-s", *image]).stdout.decode()
    inode = run([dump, "--path=/a/b/c", *image]).stdout.decode()

    assert re.search(r"Filesystem inode count:\s+3008\b", text)
    assert re.search(r"Filesystem features:\s+sb_csum mtime chunked_file device_table", text)
    assert re.search(r"Size: 10000\b", inode)


@given(trees(), trees())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fsck_accepts_any_tree_and_dump_counts_its_inodes(tmp_path_factory, require_tool, one, two):
    folder = tmp_path_factory.mktemp("tree")
    layers = [layer_of(one), layer_of(two)]
    (folder / "metadata").write_bytes(erofs_metadata([layer.layer for layer in layers]))
    for number, layer in enumerate(layers):
        (folder / f"device{number}").write_bytes(layer.tar)
    words = [*(f"--device={folder / f'device{number}'}" for number in range(2)), folder / "metadata"]
    nodes = {
        node.inode if not node.is_directory else path for path, node in merge([x.layer.placed for x in layers]).walk()
    }
    checked = run([require_tool("fsck.erofs"), *words], check=False)
    dumped = run([require_tool("dump.erofs"), "-s", *words]).stdout.decode()

    assert (checked.status, checked.stderr) == (0, b"")
    assert re.search(rf"Filesystem inode count:\s+{len(nodes) + 1}\b", dumped)
