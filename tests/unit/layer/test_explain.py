"""Why a layer must be made anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.explain import reasons
from envbuilder.layer.plan import plan
from envbuilder.lock.codec import load
from envbuilder.lock.model import LockedFile

LOCK = Path(__file__).resolve().parents[3] / "lockfiles/hello/linux-x86_64.lock.toml"


@pytest.fixture(scope="module")
def hello():
    return load(LOCK.read_bytes(), source="hello")


def changed(before, after):
    return {layer: why for layer, why in reasons(plan([before]), plan([after])).items() if why}


def test_nothing_is_to_explain_of_the_same_lock(hello):
    assert changed(hello, hello) == {}


def test_a_bump_is_named_and_the_computed_layer_follows(hello):
    bumped = replace(
        hello,
        wheels=tuple(
            replace(wheel, version="9999.1", digest=Digest.of(b"new")) if wheel.name == "tzdata" else wheel
            for wheel in hello.wheels
        ),
    )
    (was,) = [wheel for wheel in hello.wheels if wheel.name == "tzdata"]

    assert changed(hello, bumped) == {
        was.layer: f"tzdata {was.version} -> 9999.1",
        "hello/top": "computed from the layers below it, which change",
    }


def test_a_package_less_is_named(hello):
    (gone,) = [wheel for wheel in hello.wheels if wheel.name == "tzdata"]
    less = replace(hello, wheels=tuple(wheel for wheel in hello.wheels if wheel is not gone))

    assert changed(hello, less)[gone.layer] == "-tzdata"


def test_another_interpreter_is_the_reason_where_no_package_is(hello):
    debs = tuple(
        replace(deb, digest=Digest.of(b"new")) if deb.name == "python3.13-minimal" else deb for deb in hello.debs
    )

    assert changed(hello, replace(hello, debs=debs))["hello/numpy"].startswith("the interpreter that compiles")


def test_a_file_of_the_project_changes_the_computed_layer_alone(hello):
    more = replace(hello, files=(LockedFile(source="motd", path="etc/motd", mode=0o644, digest=Digest.of(b"hi")),))

    assert changed(hello, more) == {"hello/top": "its files or the Debian packages changed"}


def test_without_an_earlier_lock_every_layer_is_new(hello):
    assert set(reasons((), plan([hello])).values()) == {"a new layer"}
