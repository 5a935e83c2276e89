import time

import pytest

from envbuilder.oci import media_types
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.diagnosis import Diagnosis
from envbuilder.testing.registry import refuse


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
