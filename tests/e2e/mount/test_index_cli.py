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
            env={**os.environ, **folders, **settings}, cwd=tmp_path, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode(errors="replace")

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
    starts = {
        switch: json.loads(envbuilder("resolve", reference, "--json", ENVBUILDER_MOUNT_LAYER_INDEXES=switch))["start"]
        for switch in ("off", "on")
    }
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
    assert starts == {"off": "full", "on": "lazy"}
    assert end == TEXT[-20:]
    assert mount["how"].endswith("lazy")
    assert mount["image"] == str(root.digest), "the image is what it was"


def test_an_image_of_ours_needs_none(layout, envbuilder):
    assert "needs no index" in envbuilder("index", f"oci:{layout}:test")


def test_a_start_of_an_image_that_is_not_ours_is_recorded_and_foreseen(registry, layout, envbuilder, tmp_path):
    reference = f"{registry.host}/trace/theirs:1"
    digest = envbuilder("copy", "--flavour", "zstd-chunked", f"oci:{layout}:test", reference, "--quiet").strip()
    words = ("--", "/usr/bin/cat", "/data/second")
    off = {"ENVBUILDER_MOUNT_BACKGROUND": "off"}

    recorded = json.loads(envbuilder("trace", reference, "--runs", "1", "--json", *words))
    reports = {}
    for switch in ("off", "on"):
        chunks = str(tmp_path / f"chunks-{switch}")
        settings = {**off, "ENVBUILDER_MOUNT_TRACE": switch, "ENVBUILDER_CHUNKS": chunks}
        envbuilder("run", "--report", f"{switch}.json", reference, *words, **settings)
        reports[switch] = json.loads((tmp_path / f"{switch}.json").read_text())

    assert recorded["bundle_bytes"] == 0
    assert recorded["page_bytes"] > 5 << 20
    assert reports["off"]["trace"] is None
    assert reports["on"]["trace"]["reads"] > 0
    assert reports["on"]["how"] == "erofs lazy"
    assert reports["on"]["image"] == digest, "the image is what it was"
    assert reports["on"]["counters"]["waits"] <= reports["off"]["counters"]["waits"]
