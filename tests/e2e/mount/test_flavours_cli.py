"""A flavour of an image from the command to a registry, and from there to a job: the same files, read lazily."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from envbuilder.testing.nodes import BIG

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]


@pytest.mark.network
def test_a_built_flavour_goes_to_the_registry_and_a_job_starts_from_it_lazily(cli, hello, registry, tmp_path):
    shutil.copytree(hello.store, tmp_path / "store", copy_function=os.link)
    cli = replace(cli, store=tmp_path / "store")
    there = f"{registry.host}/built/hello:1"

    (built,) = cli.json("build", "hello", "--flavour", "zstd-chunked", "--to", there)
    again = cli("copy", "--flavour", "zstd-chunked", "hello", there).stdout.strip()
    found = cli.json("resolve", there)
    ran = cli("run", "--report", str(tmp_path / "r.json"), there, "--", "python3", "-c", "import numpy; print(numpy.e)")
    report = json.loads((tmp_path / "r.json").read_text())

    assert built["digest"] == hello.digest, "the image is what it was"
    assert built["flavour"]["digest"] == found["digest"] == again == report["image"]
    assert (found["start"], found["lazyManifest"], len(hello.plain["layers"])) == ("lazy", None, found["layers"])
    assert ran.stdout.startswith("2.718")
    assert report["how"] == "erofs lazy"
    assert report["fetched_bytes"]["before_first_output"] < built["flavour"]["size"]


def test_a_copy_as_a_flavour_is_the_same_from_every_place_and_holds_the_same_files(cli, layout, registry, tmp_path):
    there = f"{registry.host}/copied"
    cli("copy", f"oci:{layout}:test", f"{there}/plain:1")

    digests = {
        replace(cli, store=tmp_path / f"store-{number}")("copy", "--flavour", "estargz", source, target).stdout.strip()
        for number, (source, target) in enumerate(
            [(f"{there}/plain:1", f"{there}/one:1"), (f"oci:{layout}:test", f"oci-archive:{tmp_path}/two.tar:1")]
        )
    }
    back = cli("copy", f"oci-archive:{tmp_path}/two.tar:1", f"{there}/two:1").stdout.strip()
    (tmp_path / "at").mkdir()
    cli("mount", f"{there}/two:1", str(tmp_path / "at"))
    try:
        got = (tmp_path / "at/data/second").read_bytes()
    finally:
        cli("unmount", str(tmp_path / "at"))

    assert digests == {back}
    assert got == BIG[::-1]
    assert cli.json("resolve", f"{there}/one:1")["start"] == "lazy"
