"""A start with a trace that was recorded with another image: as quick for what they share, and never wrong."""

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.layer.tree import directory, file
from envbuilder.mount.mount import open_mount
from envbuilder.mount.startup.adopt import NoTrace, adopt, offer
from envbuilder.mount.startup.hotbuild import build_bundle
from envbuilder.mount.startup.traces import attach_trace, find_trace
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.nodes import BIG, image_layers, make_node, push_test_image
from envbuilder.testing.traces import trace_of_reads
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow

OTHER = Random(7).randbytes(1 << 20)
THIRD = layer_of([directory("data"), file("data/third", OTHER)], name="three")


@pytest.fixture(scope="module")
def traced_layout(tmp_path_factory) -> Path:
    """A layout whose image has a trace, with a bundle, of reading 2 MiB of two files, in a layer each."""
    folder = tmp_path_factory.mktemp("donor")
    push_test_image(folder / "layout")
    made = make_node(folder / "layout", folder)
    with open_mount(made.image, made.source, made.settings, record=True) as mounted:
        for name in ("big", "second"):
            subprocess.run(["head", "-c2M", mounted.directory / "data" / name], capture_output=True, check=True)
        trace = trace_of_reads(made.image, mounted.folder.reads)
    trace = build_bundle(trace, made.image.manifest.layers, made.source, folder / "bundle", jobs=1)
    attach_trace(LayoutTarget(folder / "layout"), made.image, trace, folder / "bundle")
    return folder / "layout"


@pytest.fixture
def layout(traced_layout, tmp_path) -> Path:
    shutil.copytree(traced_layout, tmp_path / "layout")
    return tmp_path / "layout"


def child_of(node, layers):
    """An image of ``layers`` in the layout of ``node``, as ``node`` reads it."""
    made = push_image(LayoutTarget(node.folder / "layout"), layers, tag="child")
    return open_image(node.source, made.descriptor, Platform("x86_64"))


def adopted(node, child):
    layout = LayoutTarget(node.folder / "layout")
    offered = offer(layout, node.image.descriptor, child)
    adopt(layout, offered, layout, child, made_at_s=1)
    return offered


@pytest.mark.parametrize(("layers", "of_use"), [((0, 1, 2), True), ((0, 2), False)])
def test_the_bundle_of_an_older_trace_is_taken_over_only_where_all_its_layers_are(node, layers, of_use):
    """Without sizes nobody finds what stands behind a stranger's pages."""
    found = find_trace(node.source, node.image)
    stored, old = node.folder / "bundle", replace(found.trace, sizes=())
    with node.source.fetch(found.hot) as stream:
        stored.write_bytes(stream.read())
    attach_trace(LayoutTarget(node.folder / "layout"), node.image, old, stored)
    child = child_of(node, [(ONE, TWO, THIRD)[number] for number in layers])

    offered = adopted(node, child)

    (listed,) = referrers(node.source, child.descriptor)
    assert (media_types.TRACE_HOT in listed.annotations) == of_use == bool(offered.found.hot)
    with open_mount(child, node.source, node.settings) as mounted:
        assert mounted.traced
        assert (mounted.directory / "data/big").read_bytes() == BIG


ONE, TWO = image_layers()


@pytest.mark.parametrize(
    ("layers", "share"),
    [
        pytest.param([ONE, TWO, THIRD], 1.0, id="its layers and one more"),
        pytest.param([THIRD, TWO, ONE], 1.0, id="its layers in another order"),
        pytest.param([ONE, THIRD], 0.5, id="one of its layers"),
        pytest.param([THIRD, TWO], 0.5, id="the other one"),
    ],
)
def test_a_start_is_brought_the_pages_of_its_own_layers(node, layers, share):
    child = child_of(node, layers)
    offered = adopted(node, child)
    hot = offered.found.hot
    mine = find_trace(node.source, child)
    shared = sum(pages.count for pages in mine.trace.own)
    with open_mount(child, node.source, node.settings) as mounted:
        until(lambda: mounted.counters().pushed_pages == shared)
        got = {path.name: path.read_bytes() for path in (mounted.directory / "data").iterdir() if not path.is_symlink()}
        counted = mounted.counters()

    want = {}
    want |= {"big": BIG} if ONE in layers else {}
    want |= {"second": BIG[::-1], "small": b"small\n"} if TWO in layers else {}
    want |= {"third": OTHER} if THIRD in layers else {}
    assert got == want
    assert mounted.traced
    assert mine.hot == hot
    assert offered.share == pytest.approx(share, abs=0.02)
    assert counted.hot_bytes == hot.size
    assert counted.failed == 0


def test_a_second_start_finds_what_the_bundle_brought(node):
    child = child_of(node, [ONE, THIRD])
    hot = adopted(node, child).found.hot
    for _ in range(2):
        with open_mount(child, node.source, node.settings) as mounted:
            until(
                lambda: (
                    mounted.counters().pushed_pages == sum(p.count for p in find_trace(node.source, child).trace.own)
                )
            )
            assert (mounted.directory / "data/big").read_bytes() == BIG
            before = [size for digest, _, size in node.source.ranges() if digest == str(hot.digest)]
            time.sleep(0.5)  # what the kernel alone has is copied into the store

    assert sum(before) == hot.size


def test_nothing_new_is_stored_but_the_artifact(node):
    child = child_of(node, [ONE, TWO, THIRD])
    blobs = node.folder / "layout/blobs/sha256"
    before = {path.name for path in blobs.iterdir()}
    adopted(node, child)
    new = {path.name: path.stat().st_size for path in blobs.iterdir() if path.name not in before}

    assert sum(new.values()) < 3_000


def test_a_trace_of_other_layers_is_not_offered(node):
    child = child_of(node, [THIRD])
    layout = LayoutTarget(node.folder / "layout")

    with pytest.raises(NoTrace, match=f"{node.image.descriptor.digest}: want .* that {child.descriptor.digest} has"):
        offer(layout, node.image.descriptor, child)
    with pytest.raises(NoTrace, match="no start-up trace"):
        offer(layout, child.descriptor, child)


def test_a_bundle_that_lies_about_the_size_of_a_stranger_gives_no_wrong_byte(node):
    child = child_of(node, [ONE, THIRD])
    found = find_trace(node.source, node.image)
    bundle = node.folder / "layout/blobs/sha256" / found.hot.digest.hex
    for sizes in ((found.trace.sizes[0], 4096), (found.trace.sizes[0], 1 << 40)):
        attach_trace(LayoutTarget(node.folder / "layout"), child, replace(found.trace, sizes=sizes), bundle)
        with open_mount(child, node.source, node.settings) as mounted:
            got = (mounted.directory / "data/big").read_bytes()
        assert got == BIG
        shutil.rmtree(node.settings.cache_dir / "chunks")
