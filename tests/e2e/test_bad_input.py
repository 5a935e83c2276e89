"""Wrong input: a message with what, where, want, got and a hint; the family's exit code; nothing changed."""

import os
import socket
import time

import pytest

pytestmark = [pytest.mark.slow]
SPEC, INTEGRITY, UNAVAILABLE, HOST, REFUSED = 2, 3, 4, 5, 6


def declare(cli, text: str) -> None:
    folder = cli.project / "images/mine"
    folder.mkdir()
    (folder / "env.toml").write_text(text)


GOOD = 'name = "mine"\nversion = "1"\npython = "3.13"\n{}\n[base]\nsuite = "{}"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'name = "mine"\nversion = "1"\nextends = "hello"\nrequire = ["x"]\n',
            "require: unknown key; did you mean 'requires'?",
        ),
        ('name = "mine"\nversion = 1\nextends = "hello"\n', "version: want a string"),
        ('name = "mine"\nversion = "1"\nextends = "hello"\nrequires = ["numpy=="]\n', "requires[0]"),
        ('name = "mine"\nversion = "1"\nextends = "nothere"\n', "images/nothere/env.toml: no such file"),
        ('name = "mine"\nversion = "1"\nextends = "hello"\n[[files]]\nsource = "a"\npath = "etc/a"\n', "files[0]"),
        ('name = "mine"\nversion = "1"\nextends = "mine"\n', "extend itself"),
        ("name = ", "env.toml"),
    ],
)
def test_a_wrong_declaration_is_explained(fresh, text, said):
    declare(fresh, text)

    done = fresh("lock", "mine", status=SPEC)

    assert said in done.stderr
    assert done.stdout == ""
    assert not (fresh.project / "lockfiles/mine").exists()


def test_all_problems_of_a_declaration_are_reported_at_once(fresh):
    declare(fresh, 'name = "mine"\nversion = 1\nextends = "hello"\nrequire = []\nrequires = ["numpy==", 3]\n')

    done = fresh("lock", "mine", status=SPEC)

    assert all(part in done.stderr for part in ("version:", "require:", "requires[0]", "requires[1]"))


@pytest.mark.network
@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("numpy>=99999", "numpy"),
        ("numpy<2", "numpy"),
        ("envbuilder-no-such-package-exists", "envbuilder-no-such-package-exists"),
        ("flash-attn", "flash-attn"),
    ],
)
def test_a_requirement_that_cannot_be_met_is_explained(fresh, requirement, said):
    declare(fresh, f'name = "mine"\nversion = "1"\nextends = "hello"\nrequires = ["{requirement}"]\n')

    done = fresh("lock", "mine", status=SPEC)

    assert said in done.stderr
    assert not (fresh.project / "lockfiles/mine").exists()


@pytest.mark.network
def test_an_unknown_suite_is_named(fresh):
    declare(fresh, GOOD.format("requires = []", "tricksy"))

    assert "tricksy" in fresh("lock", "mine", status=SPEC).stderr


def test_a_registry_that_is_down_is_said_to_be_down(cli):
    done = cli("push", "hello", "127.0.0.1:9/env/hello:1", status=UNAVAILABLE)

    assert "127.0.0.1:9" in done.stderr


def test_an_image_that_is_not_there_is_said_not_to_be_there(cli, registry):
    done = cli("resolve", f"{registry.host}/env/nothing:1", status=REFUSED)

    assert "nothing" in done.stderr


def test_an_environment_that_was_not_built_names_the_command_to_run(fresh):
    assert "envbuilder build hello" in fresh("resolve", "hello", status=REFUSED).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize(("command", "status"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_started_ends_as_in_a_shell(cli, command, status):
    assert command in cli("run", "hello", command, status=status).stderr


def test_a_report_into_a_folder_that_is_not_there_starts_nothing(cli):
    assert "no such folder" in cli("run", "hello", "--report", "nowhere/r.json", "--", "true", status=SPEC).stderr


@pytest.mark.parametrize("words", [["push", "hello"], ["frobnicate"], ["build"], ["build", "hello", "--nope"]])
def test_a_wrong_command_line_shows_the_usage(fresh, words):
    done = fresh(*words, status=SPEC)

    assert "Usage:" in done.stderr
    assert done.stdout == ""


def test_a_store_that_is_something_else_is_left_alone(fresh):
    fresh.store.mkdir()
    (fresh.store / "precious").write_text("data")

    done = fresh("build", "hello", status=SPEC)

    assert "precious" in done.stderr
    assert [path.name for path in fresh.store.iterdir()] == ["precious"]


def test_an_altered_blob_is_never_pushed(cli, tmp_path, registry):
    there = f"oci:{tmp_path}/copy:hello"
    digest = cli.json("pull", "hello", "--to", there)["digest"]
    largest = max((tmp_path / "copy/blobs/sha256").iterdir(), key=lambda blob: blob.stat().st_size)
    largest.chmod(0o644)
    with largest.open("r+b") as blob:
        blob.seek(1000)
        blob.write(b"altered")

    # What this machine remembers of other repositories would let the registry take the blob from there.
    nothing_known = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}
    done = cli("push", there, f"{registry.host}/altered/hello:1", status=INTEGRITY, **nothing_known)

    assert largest.name in done.stderr
    assert digest not in cli("resolve", f"{registry.host}/altered/hello:1", status=REFUSED).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount a small file system")
def test_a_full_disk_is_named_and_leaves_no_partial_blob(fresh, tmp_path):
    import subprocess

    fresh.store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(fresh.store)], check=True)
    try:
        done = fresh("build", "hello", status=HOST)

        assert "full" in done.stderr or "room" in done.stderr
        blobs = fresh.store / "blobs/sha256"
        import hashlib

        assert all(hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name for blob in blobs.iterdir())
        assert not list((fresh.store / "envbuilder/incoming").iterdir())
    finally:
        subprocess.run(["umount", str(fresh.store)], check=True)


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (("why", "hello", "numpyy"), "hello: has no Python package 'numpyy'", "Did you mean numpy?"),
        (("why", "hello", "zlib1g"), "hello: has no Python package 'zlib1g'", "one of its Debian packages"),
        (("why", "hello", "qqq"), "hello: has no Python package 'qqq'", "envbuilder export hello"),
        (("export", "hello", "--output", "none/x"), "none/x: there is no folder none", "mkdir -p none"),
        (("export", "hello", "--format", "delta"), "hello: extends no environment", "pylock or requirements"),
        (("diff", "hello", "nosuch"), "nosuch: has no lock", "Lock it first"),
        (("import", "none.txt", "--name", "new"), "none.txt: no such file", ""),
        (("build", "hello", "--from-archive", "oci:none:1"), "want an OCI image layout, got none", "oci-layout"),
    ],
)
def test_a_question_that_has_no_answer_says_what_would_have_one(hello_cli, words, said, hint):
    done = hello_cli(*words, status=SPEC)

    assert said in done.stderr
    assert hint in done.stderr


def test_a_registry_that_is_not_there_is_told_while_it_is_tried_and_soon_given_up(fresh):
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()

    refused = fresh("resolve", f"{host}/env/ai:1", status=4)

    assert "refused; again in 0." in refused.stderr
    assert time.monotonic() - start < 5
    assert "again in" not in fresh("resolve", f"{host}/env/ai:1", "--quiet", status=4).stderr
