import io
from dataclasses import replace
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.errors import BadAnswer, Denied, ForbiddenAddress, RegistryDown, Rejected
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import MissingChildren, NotFound
from envbuilder.testing.registry import FakeRegistry, Reply, header, redirect, refuse

BLOB = bytes(range(256)) * 400


def stored(world):
    return world.registry.blobs.get(str(describe(BLOB).digest)) == BLOB


def methods(world, path=""):
    return [request.method for request in world.registry.requests if path in request.path]


def test_a_push_is_a_question_a_post_and_one_put(world):
    world.push(BLOB)

    assert stored(world)
    assert methods(world) == ["HEAD", "POST", "PUT"]


def test_a_push_after_a_question_does_not_ask_again(world):
    world.target.has(describe(BLOB))
    world.push(BLOB)

    assert methods(world) == ["HEAD", "POST", "PUT"]


def test_a_location_may_be_relative_and_its_state_is_kept(world):
    world.registry.relative_locations = True

    world.push(BLOB)

    assert stored(world)
    assert world.registry.seen("PUT")[0].query["_state"] == ["secret/state"]


def test_a_failed_put_whose_blob_is_there_all_the_same_is_a_success(world):
    world.registry.fault("PUT", "/uploads/", refuse(500), times=1)

    world.push(BLOB)

    assert methods(world) == ["HEAD", "POST", "PUT", "HEAD"]
    assert world.waits == []


@pytest.mark.parametrize("status", [404, 400, 416, 500, 503, 429])
def test_an_upload_that_is_lost_is_begun_anew(world, status):
    def lose(request, reply):
        world.registry.blobs.clear()
        return Reply(status=status)

    world.registry.fault("PUT", "/uploads/", lose, times=2)

    world.push(BLOB)

    assert stored(world)
    assert methods(world) == ["HEAD", *("POST", "PUT", "HEAD", "DELETE") * 2, "POST", "PUT"]


@pytest.mark.parametrize("status", [429, 503])
def test_an_upload_waits_as_long_as_the_registry_asks(world, status):
    world.registry.fault("PUT", "/uploads/", refuse(status, Retry_After="17"), times=2, instead=True)

    world.push(BLOB)

    assert stored(world)
    assert world.waits == [17, 17]


def test_an_upload_that_a_proxy_gave_up_is_begun_anew(world):
    world.registry.fault("PUT", "/uploads/", refuse(499), times=1, instead=True)

    world.push(BLOB)

    assert stored(world)


def test_a_fragment_of_a_location_does_not_swallow_the_digest(world):
    world.registry.fault(
        "POST",
        "/uploads/",
        lambda _request, reply: replace(reply, headers={"Location": reply.headers["Location"] + "#x"}),
    )

    world.push(BLOB)

    assert stored(world)


def test_a_mount_that_was_only_said_to_succeed_is_not_tried_again(world):
    layer = describe(BLOB)
    source = MemoryTarget("m")
    config = describe(b"{}", media_types.OCI_CONFIG)
    data = Manifest(config=config, layers=(layer,)).dump()
    image = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((layer, BLOB), (config, b"{}"), (image, data)):
        source.push(what, partial(io.BytesIO, content))
    world.registry.fault("POST", "/uploads/", refuse(201), only=lambda request: "mount" in request.query, instead=True)
    missing = refuse(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")
    world.registry.fault("PUT", "/manifests/", missing, only=lambda _request: not stored(world), instead=True)

    copy(source, image, world.repository(mount_from=("c/d",)), tag="1")

    assert stored(world)
    assert len([request for request in world.registry.seen("POST") if "mount" in request.query]) == 2


def test_an_upload_that_is_never_taken_ends_with_what_the_registry_says(world):
    def lose(request, reply):
        world.registry.blobs.clear()
        return refuse(500, "UNKNOWN", "disk on fire")(request, reply)

    world.registry.fault("PUT", "/uploads/", lose)

    with pytest.raises(RegistryDown, match="disk on fire"):
        world.push(BLOB)
    assert len(world.registry.seen("PUT")) == 5


@pytest.mark.parametrize(
    ("status", "code", "error", "ways"),
    [(413, "SIZE_INVALID", Rejected, 2), (405, "UNSUPPORTED", Rejected, 2), (403, "DENIED", Denied, 1)],
)
def test_an_upload_that_is_refused_for_good_is_tried_one_other_way_at_most(world, status, code, error, ways):
    def refuse_it(request, reply):
        world.registry.blobs.clear()
        return refuse(status, code)(request, reply)

    world.registry.fault("PUT", "/uploads/", refuse_it)

    with pytest.raises(error, match=code) as caught:
        world.push(BLOB)
    assert len(world.registry.seen("PUT")) == ways
    assert caught.value.hint
    assert "DELETE" in methods(world)


def test_a_repository_that_does_not_exist_is_said_at_once(world):
    world.registry.fault("POST", "/uploads/", refuse(404, "NAME_UNKNOWN", "repository name not known to registry"))

    with pytest.raises(NotFound, match="NAME_UNKNOWN: repository name not known"):
        world.push(BLOB)
    assert methods(world) == ["HEAD", "POST"]


def test_content_that_is_not_what_was_promised_is_cancelled(world):
    with pytest.raises(DigestMismatch):
        world.target.push(describe(BLOB), lambda: io.BytesIO(BLOB[:-1] + b"x"))

    assert "DELETE" in methods(world, "uploads")
    assert world.registry.uploads.open == 0
    assert not stored(world)


def test_an_error_of_the_content_is_not_one_of_the_registry(world):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise UnavailableError("the source went away")

    with pytest.raises(UnavailableError, match="source went away"):
        world.target.push(describe(BLOB), Broken)
    assert world.waits == []
    assert "DELETE" in methods(world, "uploads")
    assert world.registry.uploads.open == 0


def test_a_body_is_opened_anew_for_each_attempt(world):
    opened = []

    def content():
        opened.append(io.BytesIO(BLOB))
        return opened[-1]

    def lose(request, reply):
        world.registry.blobs.clear()
        return Reply(status=503)

    world.registry.fault("PUT", "/uploads/", lose, times=1)

    world.target.push(describe(BLOB), content)

    assert len(opened) == 2
    assert all(stream.closed for stream in opened)


def test_a_blob_of_a_neighbour_is_mounted(world):
    world.registry.add_blob(BLOB)
    world.registry.mount = "accept"
    world.registry.fault("HEAD", "/blobs/", refuse(404))

    world.repository(mount_from=["a/b", "base/image"]).push(describe(BLOB), lambda: pytest.fail("no need to read"))

    [post] = world.registry.seen("POST")
    assert (post.query["from"], post.query["mount"]) == (["base/image"], [str(describe(BLOB).digest)])


@pytest.mark.parametrize("mount", ["", "fail"])
def test_a_mount_that_fails_becomes_an_upload(world, mount):
    world.registry.mount = mount

    world.repository(mount_from=["base/image"]).push(describe(BLOB), lambda: io.BytesIO(BLOB))

    assert stored(world)
    assert methods(world).count("POST") == (1 if mount == "" else 2)


def test_a_location_on_another_origin_gets_the_bytes_and_no_credentials(new_world, registry):
    with FakeRegistry(token=True) as main:
        world = new_world(main)
        registry.uploads.add("7")
        main.fault(
            "POST", "/uploads/", header("Location", f"{registry.url}/v2/a/b/blobs/uploads/7?_state=secret%2Fstate")
        )

        world.push(BLOB)

    assert str(describe(BLOB).digest) in registry.blobs
    assert all("authorization" not in request.headers for request in registry.requests)


@pytest.mark.parametrize(
    "location", ["ftp://evil/", "http://user@evil/", "http://[::1", "http://169.254.169.254/latest/"]
)
def test_a_location_that_leads_astray_is_refused(world, location):
    world.registry.fault("POST", "/uploads/", header("Location", location))

    with pytest.raises(ForbiddenAddress):
        world.push(BLOB)


def test_a_post_without_a_location_breaks_the_protocol(world):
    world.registry.fault("POST", "/uploads/", lambda request, reply: Reply(status=202))

    with pytest.raises(BadAnswer, match="want a Location"):
        world.push(BLOB)


def test_an_upload_is_never_redirected(world):
    def elsewhere(request, reply):
        world.registry.blobs.clear()
        return redirect("http://127.0.0.1:1/")(request, reply)

    world.registry.fault("PUT", "/uploads/", elsewhere)

    with pytest.raises(Rejected, match="307"):
        world.push(BLOB)


def test_a_manifest_that_was_stored_as_another_is_an_error(world):
    world.registry.fault("PUT", "/manifests/", header("Docker-Content-Digest", f"sha256:{'0' * 64}"))

    with pytest.raises(BadAnswer, match="the registry says it stored"):
        world.push(world.manifest(), media_types.OCI_MANIFEST)


def test_a_manifest_over_the_limit_of_the_registry_is_said_in_its_words(world):
    world.registry.fault("PUT", "/manifests/", refuse(400, "MANIFEST_INVALID", "http: request body too large"))

    with pytest.raises(Rejected, match="MANIFEST_INVALID: http: request body too large"):
        world.push(world.manifest(), media_types.OCI_MANIFEST)


@pytest.mark.parametrize("code", ["MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN", "MANIFEST_UNKNOWN"])
def test_a_manifest_whose_blobs_are_not_seen_yet_is_offered_again(world, code):
    """Distribution 2.8 over files misses a blob in the moment that another client stores it too."""
    world.registry.fault("PUT", "/manifests/", refuse(400, code), times=2, instead=True)

    what = world.push(world.manifest(), media_types.OCI_MANIFEST)

    assert world.read(what) == world.manifest()
    assert world.waits == [0.1, 0.4]


def test_a_manifest_whose_blobs_are_never_seen_is_refused_as_such(world):
    world.registry.fault("PUT", "/manifests/", refuse(400, "MANIFEST_BLOB_UNKNOWN"), instead=True)

    with pytest.raises(MissingChildren):
        world.push(world.manifest(), media_types.OCI_MANIFEST)
    assert len(world.registry.seen("PUT", "/manifests/")) == 3


def test_a_manifest_that_is_refused_for_itself_is_offered_once(world):
    world.registry.fault("PUT", "/manifests/", refuse(400, "MANIFEST_INVALID"), instead=True)

    with pytest.raises(Rejected):
        world.push(world.manifest(), media_types.OCI_MANIFEST)
    assert len(world.registry.seen("PUT", "/manifests/")) == 1
