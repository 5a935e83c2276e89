"""Images of others: every kind of layer, every way of mounting, one tree; only what is read is fetched."""

import hashlib
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from envbuilder.digest import Digest
from envbuilder.image.inspect import open_image
from envbuilder.mount.foreign.image import foreign_image
from envbuilder.mount.foreign.layerindex import attach_layer_index
from envbuilder.mount.foreign.pulled import pull_layer
from envbuilder.mount.mount import open_mount
from envbuilder.mount.settings import MountSettings
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.foreign import (
    ForeignBlob,
    chunked_layer,
    foreign_tar,
    gzip_layer,
    member,
    push_foreign,
    stargz_layer,
)
from envbuilder.testing.sources import SwitchedSource

pytestmark = pytest.mark.slow

BIG = Random(5).randbytes(3 << 20)
BELOW = foreign_tar(
    [
        member("./", mode=0o711),
        member("./data/"),
        member("./data/gone", b"x"),
        member("./data/big", BIG, mtime=1_600_000_000),
        member("./data/hard", type=tarfile.LNKTYPE, linkname="./data/big"),
        member("./data/old/"),
        member("./data/old/file", b"hidden"),
    ]
)
ABOVE = foreign_tar(
    [
        member("data/.wh.gone", b""),
        member("data/old/"),
        member("data/old/.wh..wh..opq", b""),
        member("data/odd", b"y" * 4097, uid=1234, gid=70_000, mode=0o640),
        member("data/link", type=tarfile.SYMTYPE, linkname="big", mode=0o777),
    ]
)
KINDS = {
    "gzip": gzip_layer,
    "tar": lambda tar: ForeignBlob(blob=tar, tar=tar, media_type="application/vnd.oci.image.layer.v1.tar"),
    "estargz": stargz_layer,
    "estargz packed": lambda tar: stargz_layer(tar, packed=200_000),
    "zstd:chunked": chunked_layer,
}


def start(folder, *layers):
    target = LayoutTarget(folder / "layout", create=True)
    push_foreign(target, layers, tag="a")
    source = SwitchedSource(folder / "layout", folder / "switches")
    settings = MountSettings(state_dir=folder / "state", cache_dir=folder / "cache", wait_limit_s=20.0)
    return open_image(source, source.lookup("a"), Platform("x86_64")), source, settings


def tree(root):
    found = {}
    for folder, _, names in os.walk(root):
        for path in [Path(folder), *(Path(folder, name) for name in names)]:
            there = path.lstat()
            data = b""
            if path.is_symlink():
                data = bytes(path.readlink())
            elif path.is_file():
                data = path.read_bytes()
            found[os.path.relpath(path, root)] = (
                there.st_mode, there.st_uid, there.st_gid, hashlib.sha256(data).hexdigest(),
            )  # fmt: skip
    return {name: value for name, value in found.items() if name not in {".no.prefetch.landmark", "stargz.index.json"}}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    image, source, settings = start(tmp_path_factory.mktemp("unpacked"), gzip_layer(BELOW), gzip_layer(ABOVE))
    with open_mount(image, source, replace(settings, mode="unpack")) as mounted:
        return tree(mounted.directory)


@pytest.mark.parametrize("mode", ["erofs", "loop", "fuse"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_layer_shows_the_tree_that_unpacking_shows(kind, mode, tmp_path, expected):
    image, source, settings = start(tmp_path, KINDS[kind](BELOW), KINDS[kind](ABOVE))
    with open_mount(image, source, replace(settings, mode=mode)) as mounted:
        got = tree(mounted.directory)
        times = int((mounted.directory / "data/odd").stat().st_mtime)
        same = (mounted.directory / "data/big").samefile(mounted.directory / "data/hard")

    assert got == expected
    assert "data/gone" not in got
    assert "data/old/file" not in got
    assert times == 1_700_000_000
    assert same


@pytest.mark.parametrize("kind", ["estargz", "zstd:chunked"])
def test_of_a_layer_with_a_table_only_what_is_read_is_fetched(kind, tmp_path):
    image, source, settings = start(tmp_path, KINDS[kind](BELOW), KINDS[kind](ABOVE))
    with open_mount(image, source, settings) as mounted:
        names = [name for _, _, files in os.walk(mounted.directory) for name in files]
        (mounted.directory / "data/odd").read_bytes()
        few = mounted.counters().fetched_bytes

    assert "big" in names
    assert 0 < few < 20_000
    assert mounted.how == "erofs lazy"


def test_mixed_layers_are_one_tree(tmp_path, expected):
    image, source, settings = start(tmp_path, gzip_layer(BELOW), chunked_layer(ABOVE))
    with open_mount(image, source, settings) as mounted:
        assert tree(mounted.directory) == expected


def test_a_gzip_image_starts_without_its_source_when_it_was_pulled_before(tmp_path, expected):
    image, source, settings = start(tmp_path, gzip_layer(BELOW), gzip_layer(ABOVE))
    with open_mount(image, source, settings) as mounted:
        first = mounted.how
    source.switch("away")
    with open_mount(image, source, settings) as mounted:
        assert tree(mounted.directory) == expected
    assert first == mounted.how == "erofs direct"


def test_an_evicted_gzip_layer_is_read_by_ranges_of_its_checkpoints(tmp_path):
    import shutil

    image, source, settings = start(tmp_path, gzip_layer(BELOW), gzip_layer(ABOVE))
    with open_mount(image, source, settings):
        pass
    shutil.rmtree(tmp_path / "cache/chunks/blobs")
    with open_mount(image, source, settings) as mounted:
        with open(mounted.directory / "data/big", "rb", buffering=0) as file:
            file.seek(2_900_000)
            part = file.read(100)
        fetched = mounted.counters().fetched_bytes
        whole = (mounted.directory / "data/big").read_bytes()

    assert mounted.how == "erofs lazy"
    assert part == BIG[2_900_000:2_900_100]
    assert fetched < 2_300_000
    assert whole == BIG


def test_an_index_in_the_registry_is_believed_only_when_that_is_wanted(tmp_path):
    image, source, settings = start(tmp_path, gzip_layer(BELOW), gzip_layer(ABOVE))
    target = LayoutTarget(tmp_path / "layout")
    for number, (layer, diff_id) in enumerate(zip(image.manifest.layers, image.config.diff_ids, strict=True)):
        made = pull_layer(target, layer, Digest.parse(str(diff_id)), tmp_path / f"{number}.tar", lambda _: None)
        attach_layer_index(target, layer, made)
    believing = replace(settings, cache_dir=tmp_path / "other", layer_indexes=True)
    with open_mount(image, source, settings) as mounted:
        unbelieved = mounted.how
    with open_mount(image, source, believing) as mounted:
        whole = (mounted.directory / "data/big").read_bytes()

    assert unbelieved == "erofs direct"
    assert mounted.how == "erofs lazy"
    assert whole == BIG


def test_altered_ranges_are_never_shown(tmp_path):
    image, source, settings = start(tmp_path, stargz_layer(BELOW), stargz_layer(ABOVE))
    foreign = foreign_image(image, source, settings.cache_dir)
    source.switch("altered")
    with open_mount(image, source, settings) as mounted, pytest.raises(OSError, match="Input/output"):
        (mounted.directory / "data/big").read_bytes()

    assert foreign is not None


def test_what_tables_cannot_say_is_unpacked(tmp_path):
    bad = gzip_layer(foreign_tar([member("a", type=tarfile.LNKTYPE, linkname="of-the-layer-below")]))
    image, source, settings = start(tmp_path, gzip_layer(foreign_tar([member("of-the-layer-below", b"x")])), bad)
    with open_mount(image, source, settings) as mounted:
        assert (mounted.directory / "a").read_text() == "x"
    assert mounted.how == "unpacked"
