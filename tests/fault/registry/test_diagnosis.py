import base64
import json
import time
from dataclasses import replace

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.diagnosis import Diagnosis, http_library
from envbuilder.registry.grants import granted
from envbuilder.testing.registry import FakeRegistry, header, refuse


@pytest.fixture
def ask(world):
    def ask(*, now_s=0.0, try_push=False, image=True):
        world.registry.add_blob(b"{}")
        what = world.registry.add_manifest("a/b", "1", world.manifest(), media_types.OCI_MANIFEST)
        registry = world.client.registry(world.registry.host)
        diagnosis = Diagnosis(registry=registry, capabilities=Capabilities(), now_s=lambda: now_s)
        diagnosis.host()
        diagnosis.repository("a/b", what if image else None, try_push=try_push)
        return {each.name: each for each in diagnosis.found}

    return ask


def test_a_registry_of_the_specification_is_found_well(world, ask):
    world.registry.referrers = True

    found = ask()

    assert (found["answers"].ok, found["pull"].value, found["range"].ok) == (True, "allowed", True)
    assert found["referrers API"].value == "yes"
    assert not world.registry.seen("POST")


def test_a_clock_that_is_wrong_is_said(world, ask):
    found = ask(now_s=time.time() + 1_000)

    assert found["clock"].ok is False
    assert found["clock"].value.startswith(("-1000 s", "-1001 s"))


def test_ranges_that_are_not_given_and_a_missing_api_are_said(world, ask):
    world.registry.ranges = False

    found = ask()

    assert found["range"].ok is False
    assert "tag schema" in found["referrers API"].value


def test_an_upload_that_is_tried_is_cancelled(world, ask):
    found = ask(try_push=True)

    assert (found["push"].ok, found["mount"].value[:2], found["cancel of an upload"].value) == (True, "no", "yes")
    assert world.registry.uploads.open == 0


def test_a_refusal_is_a_finding_and_the_rest_is_asked(world, ask):
    world.registry.fault("HEAD", "/manifests/", refuse(403, "DENIED"))
    world.registry.fault("GET", "/v2/$", refuse(502))

    found = ask()

    assert found["answers"].ok is False
    assert found["pull"].ok is False
    assert found["range"].ok is True


def test_how_a_registry_asks_and_what_its_token_grants_are_said(new_world, tmp_path):
    claims = {"access": [{"type": "repository", "name": "a/b", "actions": ["pull"]}]}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    with FakeRegistry(token=True) as registry:
        registry.fault("GET", "/token", lambda _r, reply: replace(reply, body=b'{"token":"e30.%s.x"}' % body.encode()))
        registry.fault("HEAD", "/manifests/", lambda _r, reply: replace(reply, status=200))
        registry.fault("POST", "/uploads/", lambda _r, reply: replace(reply, status=403))
        world = new_world(registry)
        known = world.client.registry(registry.host)
        diagnosis = Diagnosis(registry=known, capabilities=Capabilities(), now_s=time.time)
        diagnosis.host()
        diagnosis.repository("a/b", None, try_push=True)
    found = {each.name: each for each in diagnosis.found}

    assert found["authorization"].value.startswith(f"Bearer: tokens from http://{registry.host}/token")
    assert found["scopes for pull"].ok is True
    assert "repository:a/b:pull" in found["scopes for pull"].value
    assert found["scopes for pull and push"].ok is False


def test_a_registry_that_asks_nobody_is_said(ask):
    assert ask()["authorization"].value == "it asks nobody"


@pytest.mark.parametrize(
    "token",
    [
        "opaque",
        "a.b",
        "a.!.c",
        "a.e30.c",
        "a.W10.c",
        "e30.eyJhY2Nlc3MiOlsxXX0.x",
        "e30.eyJhY2Nlc3MiOlt7fV19.x",
        "..",
        "",
    ],
)
def test_a_token_that_says_nothing_grants_nothing_that_we_know_of(token):
    assert granted(token) is None


def test_indexes_in_indexes_without_end_are_not_followed(world, ask):
    indexes = (Index(manifests=(describe(b"%d" % number, media_types.OCI_INDEX),)).dump() for number in range(50))
    world.registry.fault("GET", "/manifests/", lambda _request, reply: replace(reply, body=next(indexes)))

    ask()

    assert len(world.registry.seen("GET")) < 20


def test_what_a_token_grants_cannot_write_to_the_terminal():
    access = [{"type": "repository", "name": "a\x1b[2J", "actions": ["pull"]}]
    word = base64.urlsafe_b64encode(json.dumps({"access": access}).encode()).decode().rstrip("=")

    assert granted(f"a.{word}.c") == ("repository:a [2J:pull",)


@pytest.mark.parametrize(("version", "ok"), [("2.8.0", True), ("2.8.901", False), ("2.12.907", False)])
def test_a_library_that_took_urllib3s_place_is_said(monkeypatch, version, ok):
    """niquests brings urllib3-future along, which overwrites urllib3 and reads at half the speed."""
    monkeypatch.setattr("urllib3.__version__", version)

    found = http_library()

    assert (found.ok, "urllib3-future" in found.value) == (ok, not ok)


def test_a_product_is_known_by_its_challenge(new_world, tmp_path):
    with FakeRegistry(token=True) as registry:
        text = f'Bearer realm="{registry.url}/token",service="harbor-registry"'
        registry.fault(
            "GET",
            "/v2/",
            lambda request, reply: header("WWW-Authenticate", text)(request, reply) if reply.status == 401 else reply,
        )
        world = new_world(registry)
        diagnosis = Diagnosis(
            registry=world.client.registry(registry.host), capabilities=Capabilities(tmp_path), now_s=time.time
        )

        diagnosis.host()

    assert {each.name: each.value for each in diagnosis.found}["product"].startswith("Harbor; no cookies are sent")
