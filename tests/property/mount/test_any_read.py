"""Whatever is read of a mounted image, by whichever way it is mounted, equals what was built."""

import os
import stat
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.image.inspect import open_image
from envbuilder.layer.frames import CHUNK_SIZE
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.mount.mount import MountSettings, open_mount
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.nodes import BIG, Node
from envbuilder.testing.sources import SwitchedSource

pytestmark = pytest.mark.slow

#: How a kernel can be told to show an image; "direct": from a complete store, past us.
WAYS = ("erofs", "loop", "fuse", "unpack", "direct")
#: Sizes around those at which something changes: nothing, a page, a chunk, a tail after a chunk.
SIZES = (0, 1, 4095, 4096, 4097, 70_000, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, 2 * CHUNK_SIZE + 777)
FILES = {f"d{number % 3}/f{number}": BIG[number * 1000 :][:size] for number, size in enumerate(SIZES)}
ZEROS = bytes(3 * CHUNK_SIZE)
FILES["zeros"] = ZEROS[: CHUNK_SIZE + 5] + b"x" + ZEROS


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path_factory.mktemp("ways")
    half = sorted(FILES)[: len(FILES) // 2]
    layers = [
        layer_of(
            [*(directory(f"d{number}") for number in range(3)), *(file(name, FILES[name]) for name in half)], name="one"
        ),
        layer_of(
            [*(file(name, FILES[name]) for name in FILES if name not in half), symlink("link", "zeros")], name="two"
        ),
    ]
    push_image(LayoutTarget(folder / "layout", create=True), layers, tag="test")
    source = SwitchedSource(folder / "layout", folder / "switches")
    return Node(
        open_image(source, source.lookup("test"), Platform("x86_64")),
        source,
        MountSettings(state_dir=folder / "state", cache_dir=folder / "cache"),
        folder,
    )


@pytest.fixture(scope="module")
def roots(node):
    """The image mounted in every way at once, each from a store of its own."""
    with ExitStack() as stack:
        found = {}
        for way in WAYS:
            mode = "auto" if way == "direct" else way
            chosen = replace(node.settings, mode=mode, cache_dir=node.folder / way)
            mounted = stack.enter_context(open_mount(node.image, node.source, chosen, full=way == "direct"))
            found[way] = mounted.directory
        yield found
    assert node.leftovers() == []


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_piece_of_any_file_is_what_was_built(roots, way, data):
    name = data.draw(st.sampled_from(sorted(FILES)))
    content = FILES[name]
    offset = data.draw(st.integers(0, len(content) + 5000) | st.sampled_from((0, 4096, CHUNK_SIZE, len(content))))
    size = data.draw(st.integers(0, len(content) + 5000) | st.sampled_from((1, 4096, CHUNK_SIZE + 1)))
    opened = os.open(roots[way] / name, os.O_RDONLY)
    try:
        got = os.pread(opened, size, offset)
    finally:
        os.close(opened)

    assert got == content[offset : offset + size]


def test_every_way_shows_one_tree(roots):
    def tree(root):
        found = {}
        for folder, folders, files in os.walk(root):
            for path in (Path(folder, name) for name in (*folders, *files)):
                what = path.lstat()
                links, size = (0, 0) if stat.S_ISDIR(what.st_mode) else (what.st_nlink, what.st_size)
                facts = (what.st_mode, what.st_uid, what.st_gid, int(what.st_mtime), links, size)
                found[str(path.relative_to(root))] = facts
        return found

    trees = {way: tree(root) for way, root in roots.items()}

    assert set(FILES) < set(trees["erofs"])
    assert [way for way in WAYS if trees[way] != trees["erofs"]] == []
