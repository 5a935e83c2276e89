"""From a lock to a registry and back, through the command, on the real ``hello``."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_a_build_prints_the_digest_alone_on_stdout(cli):
    done = cli("build", "hello")

    assert done.stdout.startswith("sha256:")
    assert len(done.stdout) == len("sha256:\n") + 64
    assert "0 built" in done.stderr


def test_a_second_build_elsewhere_gives_the_same_image(cli, tmp_path):
    first = cli("build", "hello").stdout
    script = 'umask 077; exec "$0" -m envbuilder build hello --store "$1"'

    second = subprocess.run(
        ["sh", "-c", script, shutil.which("python", path=str(Path(os.sys.executable).parent)), str(tmp_path / "other")],
        cwd=cli.project,
        env=cli.environ(TZ="Asia/Kathmandu", LC_ALL="C", PYTHONHASHSEED="7"),
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert second == first


def test_a_dry_run_builds_nothing(fresh):
    planned = fresh.json("build", "hello", "--dry-run")

    assert len(planned) > 5
    assert not list((fresh.store / "blobs/sha256").iterdir())


def test_push_then_pull_moves_only_what_is_missing(cli, registry, tmp_path):
    built = cli.json("build", "hello")[0]
    there = f"{registry.host}/env/hello:{tmp_path.name}"

    first = cli.json("push", "hello", there)
    second = cli.json("push", "hello", there)
    pulled = cli.json("pull", there, "--to", f"oci:{tmp_path}/pulled:x")

    assert first["digest"] == second["digest"] == pulled["digest"] == built["digest"]
    assert second["copied"] == 0
    assert pulled["copied"] == second["skipped"]
    assert all(
        hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        for blob in (tmp_path / "pulled/blobs/sha256").iterdir()
    )


def test_a_tag_resolves_to_the_digest_that_was_pushed(cli, registry):
    there = f"{registry.host}/resolve/hello:1"
    pushed = cli.json("push", "hello", there)

    resolved = cli.json("resolve", there)

    assert resolved["pinned"] == f"{registry.host}/resolve/hello@{pushed['digest']}"
    assert resolved["start"] == "lazy"
    assert cli.json("resolve", resolved["pinned"])["digest"] == pushed["digest"]


def test_build_to_a_registry_is_build_and_push(fresh, hello_store, registry):
    shutil.copytree(hello_store, fresh.store)
    there = f"{registry.host}/direct/hello:1"

    built = fresh.json("build", "hello", "--to", there)[0]

    assert fresh.json("resolve", there)["digest"] == built["digest"]


def test_an_archive_holds_the_same_image(cli, tmp_path):
    archive = f"oci-archive:{tmp_path}/hello.tar:hello"
    pushed = cli.json("push", "hello", archive)

    assert cli.json("resolve", archive)["digest"] == pushed["digest"]
    assert cli.json("pull", archive, "--to", f"oci:{tmp_path}/out:x")["digest"] == pushed["digest"]


def test_inspect_shows_the_locked_layers(cli):
    shown, locked = cli.json("inspect", "hello"), cli.json("inspect", "hello", "--lock")

    assert [layer["id"] for layer in shown["layers"]] == locked["layers"]
    assert shown["annotations"]["dev.envbuilder.lock-digest"] == locked["digest"]


def test_locks_are_fresh_and_frozen_says_so(cli):
    assert cli("lock", "--frozen", "hello", "standard", "ai").stdout == ""


def test_a_changed_declaration_makes_the_lock_stale(cli):
    declaration = cli.project / "images/hello/env.toml"
    declaration.write_text(declaration.read_text().replace('"pandas"', '"pandas>=3"'))
    before = (cli.project / "lockfiles/hello/linux-x86_64.lock.toml").read_bytes()

    done = cli("lock", "--frozen", "hello", status=2)

    assert "stale" in done.stderr
    assert "hint:" in done.stderr
    assert "hint: Run: envbuilder lock hello" in cli("build", "hello", status=2).stderr
    assert (cli.project / "lockfiles/hello/linux-x86_64.lock.toml").read_bytes() == before


def test_locking_again_changes_no_byte_and_no_pin(cli):
    lock = cli.project / "lockfiles/hello/linux-x86_64.lock.toml"
    before = lock.read_bytes()
    declaration = cli.project / "images/hello/env.toml"
    declaration.write_text("# a comment changes nothing\n" + declaration.read_text())

    assert cli.json("lock", "hello")[0]["changed"] is False
    assert lock.read_bytes() == before


def test_the_index_of_a_pushed_image_lists_the_plain_manifest_first(cli):
    digest = cli("build", "hello").stdout.strip()
    index = json.loads((cli.store / "blobs/sha256" / digest[7:]).read_bytes())

    assert [manifest["platform"].get("os.features") for manifest in index["manifests"]] == [None, ["erofs"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_build_that_is_told_to_end_leaves_no_process_and_nothing_half_written(fresh, number):
    argv = [sys.executable, "-m", "envbuilder", "build", "hello"]
    process = subprocess.Popen(
        argv, cwd=fresh.project, env=fresh.environ(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    begun = fresh.store / "envbuilder/incoming"
    while not (begun.is_dir() and any(begun.iterdir())):
        assert process.poll() is None
        time.sleep(0.05)

    process.send_signal(number)
    _, said = process.communicate(timeout=60)  # all who hold its stderr are gone

    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert not list(begun.iterdir())


def test_the_processes_of_a_killed_build_end_and_the_next_build_clears_up_after_it(fresh):
    argv = [sys.executable, "-m", "envbuilder", "build", "hello"]
    process = subprocess.Popen(
        argv, cwd=fresh.project, env=fresh.environ(), stderr=subprocess.PIPE, start_new_session=True
    )
    begun = fresh.store / "envbuilder/incoming"
    while not (begun.is_dir() and any(begun.iterdir())):
        assert process.poll() is None
        time.sleep(0.05)

    process.kill()
    process.communicate(timeout=30)  # all who hold its stderr are gone

    fresh("build", "hello", "--dry-run")
    assert not list(begun.iterdir())


def test_an_environment_is_locked_for_every_platform_that_it_declares(cli):
    rows = cli.json("lock", "--frozen", "--all-platforms", "hello", "databricks-ai-v5")
    told = cli("lock", "--frozen", "--all-platforms", "--platform", "linux/x86_64", "hello", status=2)
    for option in (["--upgrade"], ["--upgrade-package", "numpy"], ["--spread"]):
        assert "--frozen changes no lock" in cli("lock", "--frozen", *option, "hello", status=2).stderr

    assert [(row["name"], row["platform"], row["file"]) for row in rows] == [
        ("hello", "linux/aarch64", "lockfiles/hello/linux-aarch64.lock.toml"),
        ("hello", "linux/x86_64", "lockfiles/hello/linux-x86_64.lock.toml"),
        ("databricks-ai-v5", "linux/x86_64", "lockfiles/databricks-ai-v5/linux-x86_64.lock.toml"),
    ]
    assert "exclude each other" in told.stderr
    assert "(linux/aarch64)" in cli("lock", "--frozen", "--all-platforms", "hello").stderr
