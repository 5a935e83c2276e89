"""Layers of foreign images: how they are compressed is seen in their bytes, which media types often get wrong."""

import gzip
import io
import os
import shutil
from functools import partial

import pytest
import zstandard

from envbuilder.digest import Digest, describe
from envbuilder.image.inspect import open_image
from envbuilder.layer import foreign_tar
from envbuilder.layer.foreign_tar import BadLayer
from envbuilder.layer.tree import file
from envbuilder.mount.unpack.layers import unpacked
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.platform import Platform
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.layers import layer_of, tar_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners can only be set by root")

X86 = Platform("x86_64")
TAR = tar_of([file("a/b", b"text" * 3000)])
SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\0\0\0abc"
BYTES = {
    "plain": TAR,
    "gzip": gzip.compress(TAR),
    "two gzip members": gzip.compress(TAR[:5000]) + gzip.compress(TAR[5000:]),
    "zstd": zstandard.compress(TAR),
    "zstd behind a frame to pass over": SKIPPABLE + zstandard.compress(TAR),
    "ours": layer_of([file("a/b", b"text" * 3000)]).blob,
}
TYPES = [
    media_types.OCI_LAYER_TAR,
    media_types.OCI_LAYER_TAR_GZIP,
    media_types.OCI_LAYER_TAR_ZSTD,
    media_types.DOCKER_LAYER_TAR,
    media_types.DOCKER_LAYER_TAR_GZIP,
    media_types.DOCKER_LAYER_TAR_ZSTD,
]


def unpack(tmp_path, blob, media_type, *, tar=TAR):
    target = MemoryTarget()
    layer = describe(blob, media_type)
    config = ImageConfig(platform=X86, diff_ids=(Digest.of(tar),)).dump()
    manifest = Manifest(config=describe(config, media_types.OCI_CONFIG), layers=(layer,))
    root = describe(manifest.dump(), media_types.OCI_MANIFEST)
    for what, data in ((layer, blob), (manifest.config, config), (root, manifest.dump())):
        target.push(what, partial(io.BytesIO, data))
    return unpacked(open_image(target, root, X86), target, tmp_path / "cache", lambda *_: None)


@pytest.mark.parametrize("media_type", TYPES)
@pytest.mark.parametrize("kind", BYTES)
def test_a_layer_is_read_whatever_it_is_called(tmp_path, kind, media_type):
    root = unpack(tmp_path, BYTES[kind], media_type)

    assert (root / "a/b").read_bytes() == b"text" * 3000


def test_a_tree_that_lost_a_part_is_unpacked_again_and_nobody_else_may_look_into_its_folder(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    root = unpack(tmp_path, TAR, media_types.OCI_LAYER_TAR)
    shutil.rmtree(root / "a")

    assert unpack(tmp_path, TAR, media_types.OCI_LAYER_TAR) == root
    assert (root / "a/b").read_bytes() == b"text" * 3000
    assert oct((tmp_path / "cache").stat().st_mode) == "0o40700"


def test_what_is_no_layer_is_refused(tmp_path):
    with pytest.raises(BadLayer, match=r"want a tar, gzip or zstd layer, got 'application/vnd.in-toto"):
        unpack(tmp_path, TAR, "application/vnd.in-toto+json")


@pytest.mark.parametrize("kind", BYTES)
def test_other_bytes_than_the_images_are_refused_and_leave_nothing(tmp_path, kind):
    with pytest.raises(BadLayer, match="want diff_id"):
        unpack(tmp_path, BYTES[kind], media_types.OCI_LAYER_TAR_GZIP, tar=TAR + b"\0")

    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize(
    "blob",
    [
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"\x1f\x8bnonsense",
        b"no tar",
        BYTES["gzip"][:-9],
        BYTES["gzip"][:12] + b"\xff" * 40,
    ],
)
def test_broken_layers_are_refused(tmp_path, blob):
    with pytest.raises(BadLayer):
        unpack(tmp_path, blob, media_types.OCI_LAYER_TAR_GZIP)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_bomb_is_stopped_before_it_fills_the_disk(tmp_path, monkeypatch, compress):
    monkeypatch.setattr(foreign_tar, "_FREE_SIZE", 1 << 20)
    bomb = tar_of([file("zeros", bytes(8 << 20))])

    with pytest.raises(BadLayer, match="unpacks to more than"):
        unpack(tmp_path, compress(bomb), media_types.OCI_LAYER_TAR_GZIP, tar=bomb)

    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_a_layer_that_is_large_when_stored_may_be_as_large_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_tar, "_FREE_SIZE", 1000)

    assert unpack(tmp_path, TAR, media_types.OCI_LAYER_TAR).is_dir()
