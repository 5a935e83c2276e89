"""How many requests a push takes: a reader of docs/registry.md predicts each of them."""

import io
import shutil
from collections import Counter
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.known import KnownBlobs
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.registry import FakeRegistry, refuse
from envbuilder.testing.servers import docker_registry

LAYERS = 60


def push(target, data, media_type):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def image(layers=LAYERS, mark=b""):
    """An index of one image of as many layers."""
    source = MemoryTarget()
    blobs = [push(source, b"layer %d" % number + mark, media_types.OCI_LAYER_TAR) for number in range(layers)]
    manifest = Manifest(config=push(source, b"{}", media_types.OCI_CONFIG), layers=tuple(blobs))
    child = push(source, manifest.dump(), media_types.OCI_MANIFEST)
    return source, push(source, Index(manifests=(child,)).dump(), media_types.OCI_INDEX)


def methods(world):
    return Counter(request.method for request in world.registry.requests if request.path.startswith("/v2/"))


@pytest.fixture
def pushed(world, tmp_path):
    source, root = image()
    copy(source, root, world.repository(known=KnownBlobs(tmp_path)), tag="v1")
    world.registry.requests.clear()
    return source, root, tmp_path


def test_the_first_push_asks_once_for_each_blob_and_sends_each_in_two_requests(world, tmp_path):
    source, root = image()

    copy(source, root, world.repository(known=KnownBlobs(tmp_path)), tag="v1")

    blobs = LAYERS + 1
    # HEAD: the tag, the root, the child and each blob. PUT: each blob, the child, the root under its tag.
    assert methods(world) == {"HEAD": 3 + blobs, "POST": blobs, "PUT": blobs + 2}


def test_an_unchanged_image_of_60_layers_is_one_request_where_it_is_remembered(world, pushed):
    source, root, memory = pushed

    report = copy(source, root, world.repository(known=KnownBlobs(memory)), tag="v1")

    assert methods(world) == {"HEAD": 1}
    assert report.copied == 0


def test_with_tokens_it_is_three(tmp_path, new_world):
    with FakeRegistry(token=True) as registry:
        source, root = image()
        copy(source, root, new_world(registry).repository(writable=True, known=KnownBlobs(tmp_path)), tag="v1")
        registry.requests.clear()

        copy(source, root, new_world(registry).repository(writable=True, known=KnownBlobs(tmp_path)), tag="v1")

        assert [request.path.split("/")[-1] for request in registry.requests] == ["v1", "token", "v1"]


def test_an_unchanged_image_of_60_layers_is_a_question_for_each_where_nothing_is_remembered(world, pushed):
    source, root, _ = pushed

    copy(source, root, world.repository(), tag="v1")

    assert methods(world) == {"HEAD": LAYERS + 2}


def test_a_new_tag_on_what_is_there_is_three_requests(world, pushed):
    source, root, memory = pushed

    copy(source, root, world.repository(known=KnownBlobs(memory)), tag="v2")

    assert methods(world) == {"HEAD": 2, "PUT": 1}


def test_a_copy_within_one_registry_mounts_and_reads_no_layer(world, pushed):
    _, root, memory = pushed
    world.registry.mount = "accept"
    world.registry.fault("HEAD", "/v2/c/d/blobs/", lambda request, reply: type(reply)(status=404))
    source = world.repository()

    copy(source, root, world.repository("c/d", mount_from=["a/b"], known=KnownBlobs(memory)), tag="v1")

    counts = methods(world)
    assert counts["POST"] == LAYERS + 1
    assert counts["PUT"] == 2
    assert not world.registry.seen("GET", "/blobs/")


def test_what_was_pushed_to_a_neighbour_is_mounted_from_there_unasked(world, pushed):
    source, root, memory = pushed
    world.registry.mount = "accept"
    world.registry.fault("HEAD", "/v2/c/d/blobs/", lambda request, reply: type(reply)(status=404))

    copy(source, root, world.repository("c/d", known=KnownBlobs(memory)), tag="v1")

    assert {request.query["from"][0] for request in world.registry.seen("POST")} == {"a/b"}
    assert len(world.registry.seen("PUT")) == 2


def test_more_blobs_are_moved_at_a_time_while_all_goes_well_and_fewer_after_429(world, tmp_path):
    source, root = image()
    pace = world.client.registry(world.registry.host).pace
    first = pace.width
    copy(source, root, world.target, tag="v1")
    assert pace.width > first

    before = pace.width
    world.registry.fault("HEAD", "/blobs/", refuse(429, "TOOMANYREQUESTS"), times=1)
    world.now += 60
    assert world.target.has(describe(b"layer 1")) is True

    assert pace.width == before // 2


def test_a_pull_widens_the_gate_of_its_source(world):
    source, root = image()
    copy(source, root, world.target, tag="v1")
    with RegistryClient() as client:
        reader = RegistryTarget(RegistryReference(world.registry.host, "a/b"), client)
        copy(reader, root, MemoryTarget())

        assert reader.pace.width > 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed")
def test_a_registry_that_lost_what_is_remembered_gets_it_again(tmp_path):
    source, root = image(layers=3)
    with RegistryClient() as client:
        with docker_registry(tmp_path / "one") as registry:
            reference = RegistryReference(registry.host, "a/b")
            target = RegistryTarget(reference, client, known=KnownBlobs(tmp_path / "known"))
            copy(source, root, target, tag="v1")
        shutil.rmtree(tmp_path / "one" / "data")

        with docker_registry(tmp_path / "one", address=registry.host):
            target = RegistryTarget(reference, client, known=KnownBlobs(tmp_path / "known"))
            report = copy(source, root, target, tag="v1")

            assert report.copied == 6
            back = MemoryTarget()
            copy(RegistryTarget(reference, client), root, back, tag="v1")
            assert back.lookup("v1") == root
