"""Archives of ``docker save``: of engines before 25, and the OCI layouts around them of those since."""

import gzip
import io
import json
import os
import tarfile
from functools import partial

import pytest

from envbuilder.custom.docker_archive import DockerArchiveTarget
from envbuilder.digest import Digest, DigestMismatch, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.tarscan import BadArchive


def layer(text):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        member = tarfile.TarInfo("file")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    return out.getvalue()


LAYERS = [layer(b"base"), layer(b"top")]
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(data)) for data in LAYERS]},
    }
).encode()


def blob(data):
    return f"blobs/sha256/{Digest.of(data).hex}"


def since_25(stored, *, index=True, platforms=()):
    """Members as Docker 25 and later write them; ``stored``: the layers as they lie there."""
    manifest = Manifest(
        config=describe(CONFIG, media_types.OCI_CONFIG),
        layers=tuple(describe(data, media_types.OCI_LAYER_TAR_GZIP) for data in stored),
        annotations={"only": "in the stored manifest"},
    ).dump()
    what = describe(manifest, media_types.OCI_MANIFEST)
    listing = [{"Config": blob(CONFIG), "RepoTags": ["x/y:1"], "Layers": [blob(data) for data in stored]}]
    members = {blob(data): data for data in (CONFIG, *stored, manifest)}
    if index:
        # containerd's store nests the image's own index, with platforms that were not pulled.
        inner = Index(manifests=(*platforms, what)).dump()
        outer = Index(manifests=(describe(inner, media_types.OCI_INDEX),)).dump()
        members |= {blob(inner): inner, "index.json": outer, "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    return members | {"manifest.json": json.dumps(listing).encode()}, what


@pytest.fixture
def opened(tmp_path):
    def write(members):
        with tarfile.open(tmp_path / "saved.tar", "w") as tar:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return DockerArchiveTarget(os.open(tmp_path / "saved.tar", os.O_RDONLY), "saved")

    return write


def copied(target, name="x/y:1"):
    store = MemoryTarget()
    copy(target, target.lookup(name), store, tag="v1")
    return store


@pytest.mark.parametrize("pack", [bytes, partial(gzip.compress, mtime=0)], ids=["plain", "compressed"])
def test_an_image_of_a_newer_engine_keeps_its_layers_and_its_digest(opened, pack):
    stored = [pack(data) for data in LAYERS]
    absent = describe(b"another platform", media_types.OCI_MANIFEST)
    members, what = since_25(stored, platforms=[absent])

    target = opened(members)
    store = copied(target)

    assert target.lookup("") == target.lookup("x/y:1") == store.lookup("v1") == what
    for data in stored:
        with store.fetch(describe(data)) as stream:
            assert stream.read() == data


def test_compressed_layers_without_a_manifest_are_named_as_what_they_are(opened):
    stored = [gzip.compress(LAYERS[0], mtime=0), LAYERS[1]]
    members, _ = since_25(stored, index=False)

    store = copied(opened(members))

    with store.fetch(store.lookup("v1")) as stream:
        kinds = [each["mediaType"] for each in json.loads(stream.read())["layers"]]
    assert kinds == [media_types.OCI_LAYER_TAR_GZIP, media_types.OCI_LAYER_TAR]


def test_a_manifest_of_other_layers_is_not_the_images(opened):
    members, what = since_25(LAYERS)
    other, _ = since_25([gzip.compress(data, mtime=0) for data in LAYERS])

    target = opened(
        members | {"manifest.json": other["manifest.json"]} | {k: v for k, v in other.items() if "blobs" in k}
    )

    assert target.lookup("x/y:1").digest != what.digest
    copied(target)


def test_an_archive_of_an_older_engine_is_read(opened):
    names = [f"{Digest.of(data).hex}/layer.tar" for data in LAYERS]
    listing = [{"Config": f"{Digest.of(CONFIG).hex}.json", "RepoTags": ["x/y:1"], "Layers": names}]
    members = dict(zip(names, LAYERS, strict=True)) | {f"{Digest.of(CONFIG).hex}.json": CONFIG}

    store = copied(opened(members | {"manifest.json": json.dumps(listing).encode()}))

    for data in LAYERS:
        assert store.has(describe(data))


def test_bytes_that_are_not_what_a_blob_is_named_are_not_handed_over(opened):
    members, _ = since_25(LAYERS)
    members[blob(LAYERS[1])] = LAYERS[1][:-1] + b"x"

    with pytest.raises(DigestMismatch):
        copied(opened(members))


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "blobs/sha256/" + "0" * 64, "", None, 7])
def test_a_list_that_names_what_is_not_there_is_refused(opened, path):
    members, _ = since_25(LAYERS)
    listing = [{"Config": blob(CONFIG), "RepoTags": ["x/y:1"], "Layers": [path, path]}]

    with pytest.raises(BadArchive):
        opened(members | {"manifest.json": json.dumps(listing).encode()})


def test_an_index_that_names_itself_ends(opened):
    members, _ = since_25(LAYERS)
    inner = Index(manifests=(describe(b"x", media_types.OCI_MANIFEST),) * 500).dump()
    loop = Index(manifests=(describe(inner, media_types.OCI_INDEX),) * 500).dump()

    target = opened(members | {"index.json": loop, blob(inner): inner})

    copied(target)
