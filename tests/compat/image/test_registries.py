"""Debian's docker-registry and distribution 3 store the real image, and give it back whole or in ranges."""

import hashlib
import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_every_byte_is_stored_under_its_digest(shelf, hello):
    blobs = shelf.directory / "data/docker/registry/v2/blobs/sha256"

    for digest in hello.blobs:
        name = digest.removeprefix("sha256:")
        with (blobs / name[:2] / name / "data").open("rb") as stored:
            assert hashlib.file_digest(stored, "sha256").hexdigest() == name


def test_what_is_pulled_back_is_what_was_pushed(shelf, hello, cli, tmp_path):
    pulled = cli.json("pull", f"{shelf.host}/env/hello:1", "--to", f"oci:{tmp_path}/back:1")

    assert (pulled["digest"], pulled["copied"]) == (hello.digest, len(hello.blobs))
    for digest in hello.blobs:
        name = digest.replace(":", "/")
        assert (tmp_path / "back/blobs" / name).read_bytes() == hello.blob(digest).read_bytes()


def test_a_second_push_moves_nothing_and_another_repository_gets_mounts(shelf, hello, cli):
    again = cli.json("push", hello.reference, f"{shelf.host}/env/hello:1")

    assert (again["copied"], again["skipped"]) == (0, len(hello.blobs))


def test_a_command_starts_lazily_from_it(shelf, hello, cli, tmp_path):
    code = "import numpy; print(int(numpy.arange(5).sum()))"
    ran = cli(
        "run", f"{shelf.host}/env/hello:1", "--report", str(tmp_path / "report.json"), "--", "python3", "-c", code
    )

    report = json.loads((tmp_path / "report.json").read_text())
    assert ran.stdout == "10\n"
    assert 0 < report["fetched_bytes"]["in_all"] < sum(layer["size"] for layer in hello.plain["layers"])


def test_an_archive_in_it_gives_the_same_image_with_no_index_configured(shelf, hello, cli, tmp_path):
    kept = f"{shelf.host}/kept/hello:1"
    first, second = cli.json("archive", "hello", kept), cli.json("archive", "hello", kept)
    # An empty cache, and no other place where an artefact could come from.
    nowhere = {f"ENVBUILDER_{name}": "https://nowhere.invalid" for name in ("INDEXES_DEFAULT", "MIRRORS_DEBIAN")}
    nowhere |= {"ENVBUILDER_CACHE": str(tmp_path / "cache"), "ENVBUILDER_STORE": str(tmp_path / "store")}

    built = cli("build", "hello", "--from-archive", kept, **nowhere)

    assert (first["digest"], second["moved"]) == (second["digest"], 0)
    assert built.stdout.strip() == hello.digest
