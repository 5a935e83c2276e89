"""The layer that hides a parent's packages: it names what the parent's layers have, compiled modules only where there are."""

from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.removal import removal_plan
from envbuilder.layer.wheel import install
from envbuilder.lock.model import Wheel
from envbuilder.testing.index import tiny_wheel
from envbuilder.testing.locks import SMALL

SITE = "opt/env/lib/python3.13/site-packages"


class Wheels:
    """Wheels on the disk, by digest."""

    def __init__(self, folder):
        self.folder, self.files = folder, {}

    def add(self, name, *, layer):
        file, data = tiny_wheel(name, "1")
        digest = Digest.of(data)
        self.files[digest] = self.folder / file
        self.files[digest].write_bytes(data)
        return Wheel(name=name, version="1", file=file, digest=digest, size=len(data), layer=layer)

    def file(self, artifact):
        return self.files[artifact.digest]


@pytest.fixture
def wheels(tmp_path):
    return Wheels(tmp_path)


def lock(name, wheels, **fields):
    return replace(SMALL, name=name, wheels=tuple(wheels), debs=(), **fields)


def hidden(made, wheels, tmp_path):
    """The paths that the whiteouts of a plan hide."""
    return {entry.path.replace(".wh.", "") for entry in made.entries(wheels, cache=tmp_path)}


def test_modules_that_nobody_compiled_are_not_hidden(wheels, tmp_path):
    gone, stays = wheels.add("gone", layer="p/wheels-00"), wheels.add("stays", layer="p/wheels-00")
    parent = lock("p", [gone, stays], bytecode=False)
    made = removal_plan("c/removed", lock("c", [stays]), [parent])
    python = parent.python
    there = set(install(wheels.file(gone), gone, python=python).claims(compiled=False))
    found = hidden(made, wheels, tmp_path)

    assert found == {f"{SITE}/gone.py", f"{SITE}/gone.bin", f"{SITE}/gone-1.dist-info"}
    assert all(path in there or any(each.startswith(f"{path}/") for each in there) for path in found)


def test_modules_that_were_compiled_are(wheels, tmp_path):
    gone, stays = wheels.add("gone", layer="p/wheels-00"), wheels.add("stays", layer="p/wheels-00")
    parent = lock("p", [gone, stays], bytecode=True)
    # What the child says of its own layers is not what those of its parent are.
    made = removal_plan("c/removed", lock("c", [stays], bytecode=False), [parent])

    assert f"{SITE}/__pycache__/gone.cpython-313.pyc" in hidden(made, wheels, tmp_path)


def test_each_package_is_as_the_lock_of_its_layer_says(wheels, tmp_path):
    one, two = wheels.add("one", layer="root/wheels-00"), wheels.add("two", layer="p/wheels-00")
    stays = wheels.add("stays", layer="root/wheels-00")
    root, parent = lock("root", [one, stays], bytecode=True), lock("p", [one, stays, two], bytecode=False)
    found = hidden(removal_plan("c/removed", lock("c", [stays]), [root, parent]), wheels, tmp_path)

    assert {path for path in found if path.endswith(".pyc")} == {f"{SITE}/__pycache__/one.cpython-313.pyc"}


def test_what_was_compiled_is_in_the_key(wheels):
    gone = wheels.add("gone", layer="p/wheels-00")
    plans = [removal_plan("c/removed", lock("c", []), [lock("p", [gone], bytecode=each)]) for each in (True, False)]

    assert plans[0].key != plans[1].key


def test_what_a_parent_left_out_of_a_package_is_in_the_key(wheels, tmp_path):
    gone, stays = wheels.add("gone", layer="p/wheels-00"), wheels.add("stays", layer="p/wheels-00")
    parents = [lock("p", [replace(gone, without=each), stays]) for each in ((), ("gone.bin",))]
    plans = [removal_plan("c/removed", lock("c", [stays]), [parent]) for parent in parents]

    assert hidden(plans[0], wheels, tmp_path) != hidden(plans[1], wheels, tmp_path)
    assert plans[0].key != plans[1].key
