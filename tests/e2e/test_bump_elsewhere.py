"""A machine that has neither layers nor packages builds a lock that differs little: it asks the registry, not an index."""

import os
import platform
import shutil
from dataclasses import replace

import pytest

from envbuilder.oci import media_types
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers, unlist

pytestmark = [pytest.mark.slow, pytest.mark.network]

ANOTHER_FILE = '\n[[files]]\nsource = "motd"\npath = "/etc/motd"\n'


@pytest.fixture
def bumped(cli, hello, registry, tmp_path):
    """The command in a project whose lock has changed since ``hello`` was built and pushed; the reference."""
    shutil.copytree(hello.store, tmp_path / "here", copy_function=os.link)  # others expect their ``hello`` in theirs
    cli = replace(cli, store=tmp_path / "here")
    there = f"{registry.host}/bumped/hello"
    cli("build", "hello", "--to", f"{there}:1", "--record")
    folder = cli.project / "images/hello"
    (folder / "motd").write_text("hello\n")
    (folder / "env.toml").write_text((folder / "env.toml").read_text() + ANOTHER_FILE)
    cli("lock", "hello")
    return cli, f"{there}:2"


def test_what_was_noted_of_the_other_layers_is_enough_for_the_one_that_changed(bumped, tmp_path):
    cli, there = bumped
    digests = cli.project / f"lockfiles/hello/linux-{platform.machine()}.digests"
    before = digests.read_text()
    nowhere = {"ENVBUILDER_CACHE": str(tmp_path / "cache"), "ENVBUILDER_INDEXES_DEFAULT": "http://127.0.0.1:9/"}
    elsewhere = replace(cli, store=tmp_path / "elsewhere")

    (built,) = elsewhere.json("build", "hello", "--to", there, **nowhere)

    assert [row["id"] for row in built["layers"] if not row["reused"]] == ["hello/top"]
    assert list((tmp_path / "cache").glob("sha256/*/*")) == []
    after = digests.read_text()
    digests.write_text(before)
    assert cli.json("build", "hello")[0]["digest"] == built["digest"]
    assert digests.read_text() == after
    # Nor does the next bump of that machine ask for more.
    (cli.project / "images/hello/motd").write_text("hello again\n")
    elsewhere("lock", "hello")
    (again,) = elsewhere.json("build", "hello", "--to", there, **nowhere)
    assert [row["id"] for row in again["layers"] if not row["reused"]] == ["hello/top"]
    # The layers are in the registry alone, so the store offers no image, and a later build makes it whole.
    elsewhere("build", "hello")
    assert elsewhere.json("inspect", "hello")["digest"] == again["digest"]


def test_an_image_that_was_pushed_before_is_given_what_its_store_noted_of_its_layers(cli, hello, tmp_path):
    place = f"oci:{tmp_path}/there:1"
    cli("build", "hello", "--to", place, "--record")
    there, file = LayoutTarget(tmp_path / "there"), cli.project / f"lockfiles/hello/linux-{platform.machine()}.digests"
    (noted,) = referrers(there, image := there.lookup("1"), media_types.RECORDS)
    said = file.read_text()
    unlist(there, image, noted.digest)
    file.write_text("".join(line for line in said.splitlines(keepends=True) if str(noted.digest) not in line))
    bare = file.read_text()

    replace(cli, store=tmp_path / "elsewhere")("build", "hello", "--to", place)
    assert (file.read_text(), list((tmp_path / "elsewhere/blobs/sha256").iterdir())) == (bare, [])

    cli("build", "hello", "--to", place)
    assert referrers(there, image, media_types.RECORDS) == (noted,)
    assert file.read_text() == said != bare
    assert (built := cli.json("build", "hello", "--to", place)[0])["copied_bytes"] == 0
    assert built["digest"] == hello.digest
