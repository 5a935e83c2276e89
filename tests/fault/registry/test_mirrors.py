"""Two real registries and one that misbehaves: an image is read through mirrors, by the command as a user configures it."""

import json
import os
import subprocess
import sys

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.mount import open_mount
from envbuilder.mount.settings import MountSettings
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.mirrored import MirroredTarget
from envbuilder.testing.nodes import BIG
from envbuilder.testing.registry import FakeRegistry, Reply, body, refuse
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow
#: Nothing listens there.
DEAD = "127.0.0.1:9"


@pytest.fixture
def pulled(tmp_path, layout):
    """``pull`` as configured; it gives the digest, and what went to which host."""

    def pull(reference, **registries):
        config = tmp_path / "config/envbuilder/config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        host = reference.partition("/")[0]
        rows = [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in registries.items()]
        config.write_text("\n".join([f'[registries."{host}"]', *rows, ""]))
        environ = {
            **os.environ,
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "ENVBUILDER_STORE": str(tmp_path / f"store-{len(list(tmp_path.glob('store-*')))}"),
            "ENVBUILDER_CACHE": str(tmp_path / "cache"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", "pull", reference, "--debug"],
            cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        asked = [line.partition("envbuilder.registry: ")[2] for line in done.stderr.splitlines()]
        return done.stdout.strip(), [line for line in asked if line.startswith(("GET", "HEAD"))], done.stderr

    return pull


@pytest.fixture(scope="module")
def two(tmp_path_factory, layout):
    """An origin and a mirror of it, which keeps it below ``cache/``; the image's digest."""
    source = LayoutTarget(layout)
    image = source.lookup("test")
    with (
        docker_registry(tmp_path_factory.mktemp("origin")) as origin,
        docker_registry(tmp_path_factory.mktemp("mirror")) as mirror,
        RegistryClient() as client,
    ):
        for host, name in ((origin.host, "env/ai"), (mirror.host, "cache/env/ai")):
            copy(source, image, RegistryTarget(RegistryReference(host, name), client, writable=True), tag="1")
        yield origin.host, mirror.host, str(image.digest)


def test_all_but_the_tag_comes_from_the_mirror(pulled, two):
    origin, mirror, digest = two

    got, asked, _ = pulled(f"{origin}/env/ai:1", mirrors=[f"{mirror}/cache"])

    at_origin = [
        line for line in asked if f"//{origin}/" in line and "/referrers/" not in line and "/sha256-" not in line
    ]
    assert got == digest
    assert len(at_origin) == 1, "\n".join(asked)
    assert "/v2/env/ai/manifests/1" in at_origin[0]
    assert [line for line in asked if f"//{mirror}/v2/cache/env/ai/blobs/" in line]


def test_a_dead_mirror_a_stranger_and_one_that_lacks_it_cost_nothing_but_a_warning(pulled, two):
    origin, mirror, digest = two
    with FakeRegistry() as stranger:
        stranger.fault("GET", "", refuse(401, "UNAUTHORIZED", "who are you?"))

        got, asked, said = pulled(f"{origin}/env/ai:1", mirrors=[DEAD, stranger.host, mirror])

    assert got == digest
    assert f"mirror {DEAD}/env/ai: not asked for 30 s" in said
    assert f"mirror {stranger.host}/env/ai: not asked for 300 s" in said
    assert len([line for line in asked if f"//{stranger.host}/" in line]) <= 4
    assert [line for line in asked if f"//{origin}/v2/env/ai/blobs/" in line]


def test_a_mirror_s_login_is_its_own(two, pulled, monkeypatch):
    origin, _, digest = two
    login = {"auths": {origin: {"auth": "bWU6c2VjcmV0"}}}
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps(login))
    with FakeRegistry(basic="you:other") as mirror:
        got, _, _ = pulled(f"{origin}/env/ai:1", mirrors=mirror.host)

        assert got == digest
        assert mirror.requests
        assert not any("authorization" in request.headers for request in mirror.requests)


class ManyUpstreams(FakeRegistry):
    """A mirror of several registries, which tells them apart by ``ns`` alone; each has other content of one name."""

    def __init__(self, *upstreams):
        super().__init__()
        self.of = {name: FakeRegistry() for name in upstreams}

    def __enter__(self):
        for each in self.of.values():
            each.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        for each in self.of.values():
            each.__exit__(*error)
        super().__exit__(*error)

    def answer(self, request):
        self.requests.append(request)
        [name] = request.query.get("ns", ["nobody"])
        return self.of[name].answer(request) if name in self.of else refuse(404, "NAME_UNKNOWN")(request, Reply())


@pytest.mark.parametrize("told", ["on", "off"])
def test_a_mirror_of_several_registries_is_told_whose_image_is_meant(pulled, two, layout, told):
    origin, _, digest = two
    with ManyUpstreams(origin, "other.example") as mirror, RegistryClient() as client:
        source = LayoutTarget(layout)
        target = RegistryTarget(RegistryReference(mirror.of[origin].host, "env/ai"), client, writable=True)
        copy(source, source.lookup("test"), target)

        got, asked, _ = pulled(f"{origin}/env/ai@{digest}", mirrors=mirror.host, mirror_ns=told)

    assert got == digest
    assert mirror.requests
    assert {tuple(request.query.get("ns", [])) for request in mirror.requests} == {(origin,) if told == "on" else ()}
    at_origin = [line for line in asked if f"//{origin}/" in line]
    assert not any("ns=" in line for line in at_origin)
    assert bool([line for line in at_origin if "/blobs/" in line]) == (told == "off")


def test_the_image_starts_from_its_digest_when_only_the_mirror_is_there(pulled, two):
    _, mirror, digest = two

    got, _, _ = pulled(f"{DEAD}/env/ai:1", mirrors=f"{mirror}/cache", mirror_tags="mirror")

    assert got == digest


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")
def test_a_lazy_mount_fetches_a_mirror_s_corrupt_chunks_from_the_origin(two, layout, tmp_path):
    origin, _, _ = two
    with FakeRegistry() as fake, RegistryClient() as client:
        source = LayoutTarget(layout)
        bad = RegistryTarget(RegistryReference(fake.host, "env/ai"), client, writable=True)
        copy(source, source.lookup("test"), bad, tag="1")
        # Ranges of chunks are altered; what is read whole is not.
        fake.fault(
            "GET", "/blobs/", body(lambda data: bytes([*data[:-1], data[-1] ^ 1])), only=lambda r: "range" in r.headers
        )
        good = RegistryTarget(RegistryReference(origin, "env/ai"), client)
        both = MirroredTarget(good, [bad])
        image = open_image(both, both.lookup("1"), Platform("x86_64"))
        settings = MountSettings(state_dir=tmp_path / "state", cache_dir=tmp_path / "cache", wait_limit_s=20.0)

        with open_mount(image, both, settings) as mounted:
            assert (mounted.directory / "data/big").read_bytes() == BIG
            counters = mounted.counters()

        given = sum(len(blob) for blob in fake.blobs.values())
        assert 0 < counters.mirror_bytes < given, "documents and metadata are right"
        assert counters.origin_bytes > len(BIG)
        asked = [request for request in fake.seen("GET", "/blobs/") if "range" in request.headers]
        assert asked
        assert len(asked) <= 8, "each connection may have asked once before one was caught"
        assert counters.failed == 0
