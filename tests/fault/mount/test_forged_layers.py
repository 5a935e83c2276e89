"""An image may say anything of a layer that another image has: what it brings is never seen by that other.

Who may start an image on a node names its layers, and what their chunks are, and the registry that they come from. The
digest of a layer that somebody else's image has is no secret.
"""

import io
import shutil
from dataclasses import replace
from functools import partial

import pytest

from envbuilder.image.assemble import assemble
from envbuilder.image.inspect import open_image
from envbuilder.layer.tree import file
from envbuilder.mount.mount import open_mount
from envbuilder.mount.startup.hotbuild import build_bundle
from envbuilder.mount.startup.traces import attach_trace
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.nodes import BIG, image_layers
from envbuilder.testing.sources import SwitchedSource
from envbuilder.testing.traces import trace_of_reads
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow

ONE, TWO = image_layers()
#: As large as the layer that it is given out for, and with the same names.
EVIL = layer_of([file("data/second", BIG), file("data/small", b"wrong\n")], name="two")


@pytest.fixture
def forged(node, tmp_path):
    """An image of an attacker's registry, one layer of which has the digest of a layer of ``node``'s image."""
    folder = tmp_path / "attacker"
    layout = LayoutTarget(folder / "layout", create=True)
    lying = replace(EVIL.layer, blob=replace(EVIL.layer.blob, digest=TWO.layer.blob.digest))
    image = assemble(platform=Platform("x86_64"), layers=[ONE.layer, lying])
    for what, data in [(ONE.layer.blob, ONE.blob), *image.blobs.items()]:
        layout.push(what, partial(io.BytesIO, data))
    (folder / "layout/blobs/sha256" / TWO.layer.blob.digest.hex).write_bytes(EVIL.blob)
    source = SwitchedSource(folder / "layout", folder / "switches")
    return open_image(source, image.descriptor, Platform("x86_64")), source


def read(directory):
    return (directory / "data/second").read_bytes(), (directory / "data/small").read_bytes()


@pytest.mark.parametrize("full", [False, True], ids=["lazily", "whole"])
def test_what_a_forged_layer_brought_is_not_seen_in_the_image_that_has_that_layer(node, forged, full):
    image, source = forged
    with open_mount(image, source, node.settings, full=full) as mounted:
        assert read(mounted.directory) == (BIG, b"wrong\n")
    for _ in range(2):
        with open_mount(node.image, node.source, node.settings) as mounted:
            got = read(mounted.directory)

        assert got == (BIG[::-1], b"small\n")


def test_what_the_bundle_of_a_forged_layer_brought_is_not_seen_either(node, forged, tmp_path):
    image, source = forged
    with open_mount(image, source, node.settings, record=True) as mounted:
        (mounted.directory / "data/small").read_bytes()
        trace = trace_of_reads(image, mounted.folder.reads)
    shutil.rmtree(node.settings.cache_dir / "chunks")
    trace = replace(trace, ranges=tuple(pages for pages in trace.ranges if pages.device == 1))
    trace = build_bundle(trace, image.manifest.layers, source, tmp_path / "bundle", jobs=1)
    attach_trace(LayoutTarget(tmp_path / "attacker/layout"), image, trace, tmp_path / "bundle")
    with open_mount(image, source, node.settings) as mounted:
        assert (mounted.directory / "data/small").read_bytes() == b"wrong\n"
        until(lambda: mounted.counters().pushed_pages == trace.pages)

    with open_mount(node.image, node.source, node.settings) as mounted:
        assert read(mounted.directory) == (BIG[::-1], b"small\n")


def test_images_that_say_the_same_of_a_layer_share_it(node):
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    layout = LayoutTarget(node.folder / "other", create=True)
    third = layer_of([file("data/third", b"3")], name="three")
    made = push_image(layout, [ONE, third, TWO])
    source = SwitchedSource(node.folder / "other", node.folder / "others switches")
    image = open_image(source, made.descriptor, Platform("x86_64"))
    with open_mount(image, source, node.settings) as mounted:
        assert read(mounted.directory) == (BIG[::-1], b"small\n")

    asked = {digest for digest, _, _ in source.ranges()}
    assert not {str(each.layer.blob.digest) for each in (ONE, TWO)} & asked
