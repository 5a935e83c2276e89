"""``envbuilder copy`` between a registry, layouts and archives, as a user types it."""

import io
import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.layout import LayoutTarget

pytestmark = pytest.mark.slow


@pytest.fixture
def envbuilder(tmp_path):
    def envbuilder(*words, **extra):
        environ = {
            **os.environ,
            "ENVBUILDER_CACHE": str(tmp_path / "cache"),
            "ENVBUILDER_STORE": str(tmp_path / "store"),
            **extra,
        }
        argv = [sys.executable, "-m", "envbuilder", *words]
        return subprocess.run(argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=120)

    return envbuilder


def requests(done, method):
    return [line for line in done.stderr.splitlines() if f"envbuilder.registry: {method} " in line]


def test_an_image_goes_round_every_kind_of_place_and_keeps_its_digest(envbuilder, registry, layout, tmp_path):
    host = registry.host
    digest = envbuilder("copy", f"oci:{layout}:test", f"{host}/copy/one:1").stdout

    for source, destination in [
        (f"{host}/copy/one:1", f"{host}/copy/two:1"),
        (f"{host}/copy/two:1", f"oci-archive:{tmp_path}/image.tar:1"),
        (f"oci-archive:{tmp_path}/image.tar:1", f"oci:{tmp_path}/layout:1"),
        (f"oci:{tmp_path}/layout:1", f"{host}/copy/three:1"),
    ]:
        assert envbuilder("copy", source, destination, "--referrers").stdout == digest


def test_a_copy_within_a_registry_mounts_and_an_unchanged_push_is_one_request(envbuilder, registry, layout):
    host = registry.host
    first = envbuilder("push", f"oci:{layout}:test", f"{host}/mount/one:1", "--debug")

    mounted = envbuilder("copy", f"{host}/mount/one:1", f"{host}/mount/two:1", "--debug")
    again = envbuilder("push", f"oci:{layout}:test", f"{host}/mount/one:1", "--debug")

    assert requests(mounted, "POST")
    assert "_state=..." in first.stderr
    # The HTTP library's own log would show the whole URL.
    assert not re.search(r"_state=(?!\.\.\.)", first.stderr)
    assert all("-> 201" in line for line in requests(mounted, "POST"))
    assert len(requests(again, "HEAD")) == 1
    assert not [line for method in ("GET", "POST", "PUT") for line in requests(again, method)]


def test_one_platform_and_a_docker_archive(envbuilder, registry, layout, tmp_path):
    whole = envbuilder("copy", f"oci:{layout}:test", f"{registry.host}/part/one:1").stdout

    one = envbuilder("copy", f"{registry.host}/part/one:1", f"oci:{tmp_path}/one:1", "--platform", "linux/amd64").stdout
    saved = f"docker-archive:{tmp_path}/saved.tar"
    envbuilder("copy", f"{registry.host}/part/one:1", f"{saved}:x/y:1")
    back = json.loads(envbuilder("copy", f"{saved}:x/y:1", f"oci:{tmp_path}/back:1", "--json").stdout)

    assert one != whole
    assert back["copied"] > 1


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (media_types.OCI_EMPTY, b"{}"),
        ("application/vnd.cncf.helm.config.v1+json", b"{}"),
        (media_types.OCI_CONFIG, b'{"architecture":"riscv64","os":"linux","rootfs":{"diff_ids":[],"type":"layers"}}'),
        (media_types.OCI_CONFIG, b"no JSON"),
    ],
)
def test_what_cannot_start_here_is_copied_as_it_is(envbuilder, tmp_path, kind, config):
    layout = LayoutTarget(tmp_path / "from", create=True)
    document = Manifest(config=describe(config, kind), layers=(), artifact_type="text/x").dump()
    what = describe(document, media_types.OCI_MANIFEST)
    for blob, data in ((describe(config, kind), config), (what, document)):
        layout.push(blob, partial(io.BytesIO, data))
    layout.tag(what, "1")

    copied = envbuilder("copy", f"oci:{layout.directory}:1", f"oci:{tmp_path}/to:1").stdout.strip()

    assert copied == str(what.digest)
    assert LayoutTarget(tmp_path / "to").lookup("1").digest == what.digest


def test_a_setting_asks_for_chunks(envbuilder, registry, layout):
    host = registry.host

    sent = envbuilder(
        "push", f"oci:{layout}:test", f"{host}/chunk/one:1", "--debug", ENVBUILDER_REGISTRIES_CHUNKED=f"{host}=1"
    )

    assert len(requests(sent, "PATCH")) >= 12  # the image has 12 MB
