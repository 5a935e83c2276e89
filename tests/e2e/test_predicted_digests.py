"""What is known of an image is not made again: by the project's file, the store's memory, or an archive. On ``hello``."""

import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


def digests(cli) -> Path:
    return cli.project / f"lockfiles/hello/linux-{platform.machine()}.digests"


@pytest.fixture
def known(cli):
    """The command in a project that says what ``hello`` becomes."""
    cli("build", "hello", "--record")
    return cli


@pytest.fixture
def elsewhere(known, tmp_path):
    """The same project on a machine whose store is empty."""
    return replace(known, store=tmp_path / "elsewhere")


def test_a_build_says_what_the_lock_became(known, hello):
    assert hello.digest in digests(known).read_text()
    assert all(layer["digest"] in digests(known).read_text() for layer in hello.plain["layers"])


def test_what_the_destination_has_is_built_without_store_and_artefacts(known, elsewhere, registry, tmp_path):
    there = f"{registry.host}/predicted/hello"
    first = known.json("build", "hello", "--to", f"{there}:1")[0]
    nowhere = {"ENVBUILDER_CACHE": str(tmp_path / "cache"), "ENVBUILDER_INDEXES_DEFAULT": "http://127.0.0.1:9/"}

    second = elsewhere.json("build", "hello", "--to", f"{there}:2", **nowhere)[0]

    assert second["digest"] == first["digest"] == elsewhere.json("resolve", f"{there}:2")["digest"]
    assert second["copied_bytes"] == 0
    assert [row["digest"] for row in second["layers"]] == [row["digest"] for row in first["layers"]]
    assert list((elsewhere.store / "blobs/sha256").iterdir()) == []
    assert list((tmp_path / "cache").glob("sha256/*/*")) == []


def test_a_wrong_prediction_stops_the_build_and_names_the_layer(known):
    file = digests(known)
    text = file.read_text()
    line = next(line for line in text.splitlines() if '"hello/wheels-00"' in line)
    file.write_text(text.replace(line, re.sub(r'(?<!-)digest = "sha256:.{4}', 'digest = "sha256:0000', line)))

    done = known("build", "hello", status=3)

    assert "hello/wheels-00: want sha256:0000" in done.stderr
    assert "--record" in done.stderr
    known("build", "hello", "--record")
    assert file.read_text() == text


def test_a_prediction_of_a_lock_that_has_changed_since_predicts_nothing(known):
    file = digests(known)
    text = file.read_text()
    file.write_text(re.sub(r'(?m)^key = "sha256:.{4}', 'key = "sha256:0000', text))

    known("build", "hello")

    assert file.read_text() == text


def test_a_file_of_digests_that_is_none_is_refused(known):
    digests(known).write_text("format = 1")

    done = known("build", "hello", status=2)

    assert "Remove the file" in done.stderr


def test_an_archive_gives_the_same_image_without_any_network(known, elsewhere, hello, require_tool, tmp_path):
    kept = f"oci:{tmp_path}/kept:hello"
    first, second = known.json("archive", "hello", kept), known.json("archive", "hello", kept)
    assert (first["digest"], second["moved"]) == (second["digest"], 0)

    done = subprocess.run(
        [require_tool("unshare"), "--map-root-user", "--net", sys.executable, "-m", "envbuilder", "build", "hello",
         "--from-archive", kept],
        cwd=elsewhere.project, env=elsewhere.environ(ENVBUILDER_CACHE=str(tmp_path / "cache")),
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == hello.digest


def test_a_plan_builds_nothing_and_gives_reasons(known, elsewhere, hello):
    here = known.json("plan", "hello")
    there = elsewhere.json("plan", "hello", "--to", f"oci:{elsewhere.store}-other:x")

    assert here["build"] == 0
    assert there["build"] == len(hello.plain["layers"])
    assert list((elsewhere.store / "blobs/sha256").iterdir()) == []


def test_a_plan_says_to_the_byte_what_a_push_sends_and_at_most_where_a_registry_may_mount(known, registry, tmp_path):
    own = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}  # what other tests saw of the registry is not remembered
    one, two = (f"{registry.host}/planned-{name}/hello:1" for name in ("one", "two"))

    first = known.json("plan", "hello", "--to", one, **own)
    sent = known.json("build", "hello", "--to", one, **own)[0]["copied_bytes"]
    again = known.json("plan", "hello", "--to", one, **own)
    beside = known.json("plan", "hello", "--to", two, **own)
    sent_beside = known.json("build", "hello", "--to", two, **own)[0]["copied_bytes"]

    assert first["exact"]
    # Five documents that go at the same time have one empty config, of two bytes.
    assert 0 <= sent - first["push_bytes"] <= 10
    assert (again["push_bytes"], again["push_layers"], again["exact"]) == (0, 0, True)
    assert (beside["exact"], beside["mount_layers"]) == (False, beside["push_layers"])
    assert sent_beside <= beside["push_bytes"] == first["push_bytes"]


def test_verbs_that_read_locks_agree_on_hello(known):
    chains = known.json("why", "hello", "numpy")["chains"]
    exported = known("export", "hello", "--format", "requirements").stdout
    same = known.json("diff", "hello", str(known.project / "lockfiles/hello/linux-x86_64.lock.toml"))

    assert [{"name": "", "requires": "numpy"}] in chains
    assert "numpy==" in exported
    assert (same["artifacts"], same["fetch_bytes"]) == ([], 0)
