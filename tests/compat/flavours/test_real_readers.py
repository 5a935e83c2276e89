"""Programs of others take the flavours: stargz-snapshotter under containerd mounts one lazily, podman pulls both by ranges."""

import os
import re
from pathlib import Path

import pytest

from envbuilder.custom.flavours.convert import convert
from envbuilder.custom.flavours.names import FLAVOURS
from envbuilder.image.inspect import open_image
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.proc import run
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.containerd import containerd

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]


@pytest.fixture(scope="module")
def pushed(layout, registry, tmp_path_factory):
    """The small image in each flavour in a registry, below ``flavours/``; bytes of its layers as stored."""
    source = LayoutTarget(layout)
    image = open_image(source, source.lookup("test"), Platform("x86_64"))
    store = LayoutTarget(tmp_path_factory.mktemp("flavours") / "store", create=True)
    sizes = {}
    with RegistryClient() as client:
        for flavour in FLAVOURS:
            root = convert(image, source, store, flavour, jobs=2, progress=lambda _size: None)
            target = RegistryTarget(RegistryReference(registry.host, f"flavours/{flavour}"), client, writable=True)
            copy(store, root, target, tag="1")
            sizes[flavour] = sum(layer.size for layer in open_image(store, root, Platform("x86_64")).manifest.layers)
    return f"{registry.host}/flavours", sizes


def test_stargz_snapshotter_mounts_an_estargz_image_lazily_and_containerd_runs_it(pushed, require_tool, tmp_path):
    where, sizes = pushed
    require_tool("containerd")
    remote = require_tool("ctr-remote")
    reference = f"{where}/estargz:1"
    with containerd(tmp_path, stargz=require_tool("stargz-snapshotter")) as ctr:
        ctr("images", "rpull", "--plain-http", reference, program=remote)
        stored = ctr("content", "ls", "--quiet").stdout.decode().split()
        fetched = sum(file.stat().st_size for file in (tmp_path / "stargz/stargz").rglob("*") if file.is_file())
        words = ["--rm", "--snapshotter", "stargz", reference, "small", "/usr/bin/cat", "/data/small"]
        out = ctr("run", *words).stdout
        log = ctr.log.read_text()

    assert out == b"small\n"
    assert len(stored) <= 3, "no layer was pulled: an index, a manifest, a config"
    assert fetched < sizes["estargz"]
    assert log.count("preparing filesystem mount") == 2
    assert "failed" not in log


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_podman_pulls_a_flavour_by_ranges(pushed, require_tool, tmp_path, flavour):
    where, _ = pushed
    config = tmp_path / "storage.conf"
    config.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n'
        '[storage.options]\npull_options = {enable_partial_images = "true", use_hard_links = "false", ostree_repos = ""}\n'
    )
    environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(config), "HOME": str(tmp_path)}
    podman = require_tool("podman")
    reference = f"{where}/{flavour}:1"

    pulled = run([podman, "--log-level=debug", "pull", "--tls-verify=false", reference], env=environ)
    mounted = run([podman, "image", "mount", reference], env=environ).stdout.decode().strip()
    try:
        data = Path(mounted) / "data"
        small, names = (data / "small").read_bytes(), sorted(file.name for file in data.iterdir())
    finally:
        run([podman, "image", "umount", reference], env=environ)

    assert len(re.findall(r"Retrieved partial blob", pulled.stderr.decode())) == 2
    assert small == b"small\n"
    assert names == ["big", "link", "second", "small"]
