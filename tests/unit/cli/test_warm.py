"""Which command lines may have been decided before, and what a decision follows from."""

import os
import subprocess
import sys

import pytest

from envbuilder.cli.warm import asked_for

PINNED = "host.example/some/image@sha256:" + "a" * 64


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.chdir(tmp_path)


def key(*words: str, **environ: str) -> str | None:
    found = asked_for(["run", *words], {"HOME": "/nowhere", **environ})
    return found and found.key


@pytest.mark.parametrize(
    "words",
    [
        ["run"], ["run", "--"], ["run", "ai"], ["run", "host.example/some/image:1"], ["run", PINNED[:-1]], ["run", "--", PINNED],
        ["run", "--full", PINNED], ["run", PINNED, "--report", "x.json"], ["run", "--env", "NAME", PINNED], ["run", "--env"],
        ["run", PINNED, "--dry-run"], ["mount", PINNED], [], ["run", "oci:/some/layout@sha256:1"],
    ],
)  # fmt: skip
def test_anything_but_a_pinned_start_goes_the_ordinary_way(root, words):
    assert asked_for(words, {}) is None


def test_without_root_all_goes_the_ordinary_way(root, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert key(PINNED) is None


def test_the_command_and_its_variables_decide_nothing(root):
    keys = {
        key(PINNED),
        key(PINNED, "--", "id"),
        key(PINNED, "sh", "--full", "-c", "x"),
        key("--env", "A=1", PINNED),
        key(PINNED, "--env=A=2", "id"),
    }

    assert len(keys) == 1
    assert None not in keys


def test_what_a_start_follows_from_makes_another_key(root, tmp_path):
    keys = [
        key(PINNED),
        key(PINNED, "--workdir", "/x"),
        key(PINNED, "--user=1"),
        key(PINNED.replace("image@", "other@")),
        key(PINNED, ENVBUILDER_MOUNT_MODE="fuse"),
        key(PINNED, HOME="/elsewhere"),
        key(PINNED, XDG_CONFIG_HOME=str(tmp_path / "config")),
    ]
    config = tmp_path / "config/envbuilder/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("")
    keys.append(key(PINNED, XDG_CONFIG_HOME=str(tmp_path / "config")))
    config.write_text("# changed")
    keys.append(key(PINNED, XDG_CONFIG_HOME=str(tmp_path / "config")))
    (tmp_path / "envbuilder.toml").write_text("")
    keys.append(key(PINNED))
    (tmp_path / "images").mkdir()
    keys.append(key(PINNED))

    assert len(set(keys)) == len(keys)


def test_a_decided_start_imports_neither_a_command_line_nor_a_registry_client():
    code = (
        "import sys, envbuilder.cli.main, envbuilder.mount.warm, envbuilder.mount.container.host\n"
        "heavy = {'click', 'dataclasses', 'inspect', 'logging', 'ssl', 'subprocess', 'threading', 'urllib3', 'zstandard'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    assert (
        subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    )
