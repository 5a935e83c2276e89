"""An image that has no start-up trace takes over that of what it comes from, and any image that of another on demand."""

import os
import shutil
from dataclasses import replace

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.startup.trace import Pages
from envbuilder.mount.startup.traces import attach_trace, find_trace
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.traces import trace_of

pytestmark = [pytest.mark.slow, pytest.mark.network]

TRACE = "application/vnd.envbuilder.trace.v1"
ANOTHER_FILE = '\n[[files]]\nsource = "motd"\npath = "/etc/motd"\n'


def opened(place, tag):
    layout = LayoutTarget(place)
    return layout, open_image(layout, layout.lookup(tag), Platform.parse("linux/x86_64"))


@pytest.fixture
def traced(cli, hello, tmp_path):
    """The command with a store of its own, whose ``hello`` has a trace: a page of its last layer, four of each other."""
    shutil.copytree(hello.store, tmp_path / "here", copy_function=os.link)  # others expect their ``hello`` in theirs
    cli = replace(cli, store=tmp_path / "here")
    store, image = opened(cli.store, "hello-1")
    last = len(image.manifest.layers) - 1
    trace = trace_of(
        image, [Pages(number, 0, 4 if number < last else 1) for number in range(last + 1)], commands=("x",)
    )
    attach_trace(store, image, trace, None, made_at_s=7)
    return cli


def attached(cli, there):
    return {each["artifactType"] for each in cli.json("discover", there)["referrers"]}


def bump(cli):
    folder = cli.project / "images/hello"
    (folder / "motd").write_text("hello\n")
    (folder / "env.toml").write_text((folder / "env.toml").read_text() + ANOTHER_FILE)
    cli("lock", "hello")


def test_the_next_version_takes_over_the_trace_and_a_push_takes_it_along(traced, registry):
    before = find_trace(*opened(traced.store, "hello-1"))
    bump(traced)

    (built,) = traced.json("build", "hello")

    assert 0.9 < built["adopted_trace"]["share"] < 1
    after = find_trace(*opened(traced.store, "hello-1"))
    assert after.trace.pages == before.trace.pages - 1
    assert traced.json("build", "hello")[0].get("adopted_trace") is None
    there = f"{registry.host}/adopted/hello:1"
    traced("build", "hello", "--to", there)
    assert TRACE in attached(traced, there)


def test_the_image_of_another_environment_whose_name_begins_alike_is_no_version_before(traced):
    other = traced.project / "images/hello-dev"
    other.mkdir()
    (other / "env.toml").write_text('name = "hello-dev"\nversion = "1"\nextends = "hello"\n')
    store = LayoutTarget(traced.store)
    store.tag(store.lookup("hello-1"), "hello-dev-1")
    store.untag("hello-1")
    bump(traced)

    assert "adopted_trace" not in traced.json("build", "hello")[0]


def test_a_place_that_has_the_image_gets_the_trace_that_was_recorded_since_and_nothing_twice(traced, registry):
    bump(traced)
    there, other = f"{registry.host}/since/hello:1", replace(traced, store=traced.store.parent / "untraced")
    other("build", "hello", "--to", there)
    assert traced.json("discover", there)["referrers"]
    assert TRACE not in attached(traced, there)
    other("trace", "hello", "--from", f"oci:{traced.store}:hello-1")

    (again,) = other.json("build", "hello", "--to", there)

    assert again["copied_bytes"] > 0
    assert TRACE in attached(traced, there)
    said = other("build", "hello", "--to", there, "--debug").stderr
    assert "HEAD http" in said
    assert "PUT http" not in said
    assert "POST http" not in said


def test_a_push_says_what_the_trace_was_of_that_it_moved(traced, registry):
    words = ("push", "hello", f"{registry.host}/told/hello:1")
    said = traced(*words).stderr
    again = traced.json(*words)

    assert "its start-up trace moved (" in said
    assert (again["copied_bytes"], again["trace_bytes"]) == (0, 0)


def test_where_the_predecessor_is_in_the_registry_alone_its_trace_is_taken_over_there(traced, registry, tmp_path):
    there = f"{registry.host}/adopted/elsewhere"
    traced("build", "hello", "--to", f"{there}:1", "--record")
    bump(traced)
    elsewhere = replace(traced, store=tmp_path / "elsewhere")

    (built,) = elsewhere.json("build", "hello", "--to", f"{there}:2")

    assert 0.9 < built["adopted_trace"]["share"] < 1
    assert TRACE in attached(traced, f"{there}:2")


def test_the_trace_of_an_image_that_is_named_is_taken_over(traced, tmp_path):
    traced("copy", f"oci:{traced.store}:hello-1", f"oci:{tmp_path}/donor:1")
    bump(traced)
    other = replace(traced, store=tmp_path / "other")
    other("build", "hello")
    assert find_trace(*opened(other.store, "hello-1")) is None

    said = other.json("trace", "hello", "--from", f"oci:{tmp_path}/donor:1", "--dry-run")
    assert find_trace(*opened(other.store, "hello-1")) is None
    done = other.json("trace", "hello", "--from", f"oci:{tmp_path}/donor:1")

    assert {**said, "digest": done["digest"]} == done
    assert 0.9 < done["share"] < 1
    assert done["commands"] == ["x"]
    assert find_trace(*opened(other.store, "hello-1")) is not None


@pytest.mark.parametrize("more", [("--add",), ("--runs", "3"), ("--no-bundle",), ("--", "python3")])
def test_what_has_no_meaning_beside_a_donor_is_refused(traced, more):
    assert "--from" in traced("trace", "hello", "--from", "hello", *more, status=2).stderr


def test_of_a_child_the_version_before_is_preferred_to_the_parent_though_it_has_less(traced):
    folder = traced.project / "images/kid"
    folder.mkdir()
    (folder / "env.toml").write_text(f'name = "kid"\nversion = "1"\nextends = "hello"\n{ANOTHER_FILE}')
    (folder / "motd").write_text("one\n")
    traced("lock", "kid")
    (first,) = traced.json("build", "kid")
    store, image = opened(traced.store, "kid-1")
    trace = trace_of(image, [Pages(number, 0, 2) for number in range(len(image.manifest.layers))], commands=("mine",))
    attach_trace(store, image, trace, None, made_at_s=8)
    (folder / "motd").write_text("two\n")
    traced("lock", "kid")

    (second,) = traced.json("build", "kid")

    assert first["adopted_trace"]["share"] == 1
    assert 0.5 < second["adopted_trace"]["share"] < 1
    assert find_trace(*opened(traced.store, "kid-1")).trace.commands == ("mine",)
