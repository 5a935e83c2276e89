"""What ``lock`` says of wheels that cannot be together, though none of them is here."""

from dataclasses import replace

import pytest

from envbuilder.cli.listings import Listings
from envbuilder.lock.download import Http, http_pool
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.index import PackageIndex
from envbuilder.testing.locks import SMALL

#: Nothing is compiled, so that no interpreter is asked for.
LOCK = replace(SMALL, debs=(), layers=("x/wheels-00", "x/top"), bytecode=False)


@pytest.fixture
def world(tmp_path):
    """A lock of two wheels with one path, and where they are."""
    with PackageIndex() as index:
        found = Listings(
            cache=ArtifactCache(tmp_path / "cache", indexes={}, mirrors={}),
            http=Http(pool=http_pool({}), wait=lambda _: None),
        )
        wheels = []
        for name in ("one", "two"):
            data = make_wheel(name, files={"both.py": name.encode(), f"{name}.bin": bytes(300_000)})
            index.files[f"/files/{name}.whl"] = data
            wheels.append(locked_wheel(name, data, layer="x/wheels-00"))
            found.note(wheels[-1].digest, f"{index.address}/files/{name}.whl", {})
        yield index, found, replace(LOCK, wheels=tuple(wheels))


def test_two_new_wheels_with_one_path_are_named_without_fetching_them(world):
    _, found, lock = world

    assert found.conflicts([lock]) == (
        "opt/env/lib/python3.13/site-packages/both.py: one and two have different files there",
    )
    assert found.read < 200_000


def test_a_wheel_that_gives_no_listing_is_left_to_the_build(world):
    index, found, lock = world
    index.ranges = False

    assert found.conflicts([lock]) == ()


def test_a_listing_that_lies_is_left_to_the_build(world):
    index, found, lock = world
    data = make_wheel("other", files={"both.py": b"1", "pad.bin": bytes(300_000)})
    index.files["/files/two.whl"] = data[: lock.wheels[1].size].ljust(lock.wheels[1].size, b"\0")

    assert found.conflicts([lock]) == ()


def test_a_lone_new_wheel_costs_nothing(world):
    index, found, lock = world
    del found.chosen[lock.wheels[0].digest]

    assert (found.conflicts([lock]), index.seen) == ((), [])
