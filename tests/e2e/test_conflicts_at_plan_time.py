"""Two packages with different files at one path: ``plan`` says so before anything is built, and what helps."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.lock.codec import digest, dump, load
from envbuilder.lock.model import Parent
from envbuilder.lock.partition import assign
from envbuilder.spec.project import load_spec
from envbuilder.testing.artifacts import locked_wheel, make_wheel

pytestmark = pytest.mark.slow

DECLARATION = 'name = "child"\nversion = "1"\nextends = "hello"\nplatforms = ["linux/x86_64"]\n'


def lock_child(cli, cache, *, without=()):
    """A child of ``hello`` with two wheels that both have ``build_backend.py``, as ``lock`` would write it."""
    project = cli.project
    folder = project / "images/child"
    folder.mkdir(exist_ok=True)
    out = f"[leave-out]\none = {list(without)!r}\n".replace("'", '"') if without else ""
    (folder / "env.toml").write_text(DECLARATION + out)
    parent = load((project / "lockfiles/hello/linux-x86_64.lock.toml").read_bytes(), source="hello")
    wheels = []
    for name in ("one", "two"):
        data = make_wheel(name, files={"build_backend.py": name.encode(), f"{name}.py": b""})
        wheel = replace(locked_wheel(name, data), without=without if name == "one" else ())
        place = cache / "sha256" / wheel.digest.hex[:2] / wheel.digest.hex
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        wheels.append(wheel)
    done = assign("child", sorted([*parent.wheels, *wheels], key=lambda wheel: wheel.name), parent.debs, parent=parent)
    lock = replace(
        parent,
        name="child",
        version="1",
        spec_digest=load_spec(project, "child").digest,
        start=(),
        files=(),
        layers=done.layers,
        wheels=done.wheels,
        debs=done.debs,
        partition=done.partition,
        parent=Parent(name="hello", lock_digest=digest(parent)),
    )
    target = project / "lockfiles/child/linux-x86_64.lock.toml"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(dump(lock))


def test_a_conflict_is_found_by_plan_and_gone_with_the_file_of_one_left_out(fresh, tmp_path):
    cache = tmp_path / "cache"
    lock_child(fresh, cache)
    refused = fresh("plan", "child", status=2, ENVBUILDER_CACHE=str(cache))
    lock_child(fresh, cache, without=("build_backend.py",))
    planned = fresh.json("plan", "child", ENVBUILDER_CACHE=str(cache))

    assert "site-packages/build_backend.py: one and two have different files there" in refused.stderr
    assert "[leave-out]" in refused.stderr
    assert planned["unread"] > 0  # those of hello
    assert not list(Path(fresh.store).glob("blobs/sha256/*"))
