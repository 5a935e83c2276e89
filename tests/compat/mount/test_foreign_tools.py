"""zstd:chunked layers that skopeo wrote are read lazily; for eStargz see tests/golden/test_estargz.py."""

import os
import subprocess

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.foreign.toc import read_table
from envbuilder.mount.mount import open_mount
from envbuilder.mount.settings import MountSettings
from envbuilder.oci.platform import Platform
from envbuilder.oci.tables import has_table
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member, push_foreign

TEXT = b"".join(b"%d squared is %d\n" % (number, number * number) for number in range(60_000))
TAR = foreign_tar([member("./"), member("./a/"), member("./a/text", TEXT), member("./a/hi", b"hi\n", uid=5)])


@pytest.fixture(scope="module")
def chunked(tmp_path_factory, require_tool):
    """A layout with an image that skopeo compressed to zstd:chunked."""
    folder = tmp_path_factory.mktemp("skopeo")
    push_foreign(LayoutTarget(folder / "from", create=True), [gzip_layer(TAR)], tag="a")
    subprocess.run(
        [require_tool("skopeo"), "copy", "--insecure-policy", "--dest-compress", "--dest-compress-format",
         "zstd:chunked", f"oci:{folder}/from:a", f"oci:{folder}/to:a"],
        check=True, capture_output=True,
    )  # fmt: skip
    return LayoutTarget(folder / "to")


def test_skopeo_s_zstd_chunked_layer_is_read_by_its_table(chunked):
    image = open_image(chunked, chunked.lookup("a"), Platform("x86_64"))
    [layer] = image.manifest.layers
    made = read_table(chunked, layer)
    found = {each.path: each for each in made.placed}
    data = b"".join(
        made.spans.read(number, chunked.fetch_range(layer, chunk.blob_offset, chunk.blob_size), source="test")
        for number, chunk in ((number, made.spans[number]) for number in range(len(made.spans)))
    )

    assert has_table(layer)
    assert sorted(found) == ["", "a", "a/hi", "a/text"]
    assert data[found["a/text"].offset :][: len(TEXT)] == TEXT
    assert found["a/hi"].uid == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")
@pytest.mark.parametrize("mode", ["auto", "fuse"])
def test_skopeo_s_zstd_chunked_image_starts_lazily(chunked, mode, tmp_path):
    image = open_image(chunked, chunked.lookup("a"), Platform("x86_64"))
    settings = MountSettings(state_dir=tmp_path / "state", cache_dir=tmp_path / "cache", mode=mode)
    with open_mount(image, chunked, settings) as mounted:
        assert (mounted.directory / "a/text").read_bytes() == TEXT
        assert mounted.how.endswith("lazy")
