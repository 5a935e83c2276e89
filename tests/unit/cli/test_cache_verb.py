"""``envbuilder cache``: what it shows, what it lets go, and that a word that names no lock keeps it from beginning."""

import fcntl
import json
import os
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

from envbuilder.cli.cache import command
from envbuilder.errors import SpecError
from envbuilder.lock.codec import dump
from envbuilder.lock.model import Parent
from envbuilder.testing.locks import FULL, SMALL, wheel


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A project with a child and its parent, and a cache with the wheels of both and of nobody, 40 days old."""
    child = replace(
        SMALL,
        name="child",
        layers=("child/wheels-00", "child/top"),
        wheels=(wheel("mine", layer="child/wheels-00"),),
        debs=(),
        parent=Parent(name="x", lock_digest=FULL.parent.lock_digest),
    )
    for lock in (SMALL, child):
        file = tmp_path / "project/lockfiles" / lock.name / "linux-x86_64.lock.toml"
        file.parent.mkdir(parents=True)
        file.write_bytes(dump(lock))
    (tmp_path / "project/images").mkdir()
    at = time.time() - 40 * 86400
    for each in (*SMALL.wheels, *SMALL.debs, *child.wheels, wheel("nobody")):
        file = tmp_path / "cache/sha256" / each.digest.hex[:2] / each.digest.hex
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * each.size)
        os.utime(file, (at, at))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


@pytest.fixture
def run(world):
    def run(*words):
        done = CliRunner().invoke(command, words, env={"ENVBUILDER_CACHE": str(world / "cache")}, standalone_mode=False)
        if done.exception:
            raise done.exception
        return done.stdout

    return run


def left(world):
    return {path.name for path in (world / "cache/sha256").rglob("*") if path.is_file()}


def test_a_list_has_each_kind_and_the_sum(run, world):
    value = json.loads(run("--json"))

    assert [(each["kind"], each["count"]) for each in value["kinds"]] == [("wheels and debs", 5)]
    on_disk = sum(path.stat().st_blocks * 512 for path in (world / "cache").rglob("*") if path.is_file())
    assert value["bytes"] == value["kinds"][0]["bytes"] == on_disk
    assert str(world / "cache") in run()
    assert "wheels and debs  5" in run("list")


@pytest.mark.parametrize("keep", ["child", "chi*", "lockfiles/child/linux-x86_64.lock.toml"])
def test_what_a_lock_and_its_parents_name_stays_and_a_dry_run_changes_nothing(run, world, keep):
    before = left(world)
    planned = json.loads(run("gc", "--keep", keep, "--dry-run", "--json"))
    unchanged = left(world)
    done = json.loads(run("gc", "--keep", keep, "--json"))

    assert unchanged == before
    assert before - left(world) == {wheel("nobody").digest.hex}
    assert [path.rpartition("/")[2] for path in done["objects"]] == [wheel("nobody").digest.hex]
    assert planned == {**done, "dry_run": True}
    assert (done["kept"], done["young"], done["busy"]) == (4, 0, False)


def test_a_parent_alone_does_not_keep_what_its_child_adds(run, world):
    run("gc", "--keep", "x")

    assert wheel("mine").digest.hex not in left(world)
    assert {each.digest.hex for each in SMALL.wheels} < left(world)


def test_an_age_is_30_days_unless_another_is_said(run, world):
    assert "freed 0 B: nothing; 5 used since" in run("gc", "--older-than", "60d")
    assert "would free" in run("gc", "--dry-run")
    assert "freed" in run("gc")
    assert left(world) == set()


@pytest.mark.parametrize("keep", ["chilld", "lockfiles/none.lock.toml", "*.toml"])
def test_a_word_that_names_no_lock_removes_nothing(run, world, keep):
    before = left(world)
    with pytest.raises(SpecError, match=r"no .*lock") as told:
        run("gc", "--keep", keep, "--keep", "child")

    assert "Name environments that are locked" in told.value.hint
    assert left(world) == before


def test_a_lock_that_is_none_or_whose_parent_is_not_there_removes_nothing(run, world):
    before = left(world)
    for name, text in (("child", None), ("x", "broken")):
        file = world / "project/lockfiles/x/linux-x86_64.lock.toml"
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(SpecError):
            run("gc", "--keep", name)

    assert left(world) == before


def test_a_wrong_age_is_told(run):
    with pytest.raises(SpecError, match="age: want a number and s, m, h or d"):
        run("gc", "--older-than", "soon")


@pytest.mark.parametrize("words", [["--dry-run"], ["list", "--older-than", "1d"], ["--keep", "child"]])
def test_what_only_a_collection_heeds_is_refused_without_one(run, words):
    with pytest.raises(SpecError, match="are of gc"):
        run(*words)


def test_what_uses_the_cache_is_said(run, world):
    (world / "cache/in-use").touch()
    holding = os.open(world / "cache/in-use", os.O_RDONLY)
    fcntl.flock(holding, fcntl.LOCK_SH)
    assert "something locks or builds here" in run("gc", "--dry-run", "--older-than", "0s")
    os.close(holding)
    assert "something locks or builds here" not in run("gc", "--dry-run", "--older-than", "0s")
