"""An image of others gets indexes in its registry, and starts lazily on a node that believes them."""

import json
import os
import subprocess
import sys

import pytest

from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.foreign import chunked_layer, foreign_tar, gzip_layer, member, push_foreign

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]

TEXT = b"".join(b"%d squared is %d\n" % (number, number * number) for number in range(200_000))


@pytest.fixture
def envbuilder(tmp_path):
    def call(*words, **settings):
        folders = {f"ENVBUILDER_{name}": str(tmp_path / name.lower()) for name in ("STATE", "CHUNKS", "CACHE", "STORE")}
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", *words],
            env={**os.environ, **folders, **settings}, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_an_indexed_gzip_image_starts_without_being_pulled(registry, envbuilder, tmp_path):
    pytest.importorskip("indexed_gzip")
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(registry.host, "index/theirs"), client, writable=True)
        tars = [foreign_tar([member("big", TEXT)]), foreign_tar([member("other", b"chunked\n" * 9)])]
        root = push_foreign(target, [gzip_layer(tars[0]), chunked_layer(tars[1])], tag="1")
    reference = f"{registry.host}/index/theirs:1"

    would = envbuilder("index", reference, "--dry-run")
    made = json.loads(envbuilder("index", reference, "--json"))
    again = json.loads(envbuilder("index", reference, "--json"))
    (tmp_path / "at").mkdir()
    envbuilder("mount", reference, "at", ENVBUILDER_MOUNT_LAYER_INDEXES="on", ENVBUILDER_MOUNT_BACKGROUND="off")
    try:
        end = (tmp_path / "at/big").read_bytes()[-20:]
        [mount] = json.loads(envbuilder("ps", "--json"))
    finally:
        envbuilder("unmount", "at")

    assert "would be indexed" in would
    assert [row["what"] for row in made["layers"]] == ["indexed now", "has a table of its own"]
    assert [row["what"] for row in again["layers"]] == ["is indexed", "has a table of its own"]
    assert end == TEXT[-20:]
    assert mount["how"].endswith("lazy")
    assert mount["image"] == str(root.digest), "the image is what it was"


def test_an_image_of_ours_needs_none(layout, envbuilder):
    assert "needs no index" in envbuilder("index", f"oci:{layout}:test")
