"""``verify`` and ``inspect --sbom`` on the image that the session built."""

import json
import subprocess
import sys

import pytest

from envbuilder.image.attached import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.network]


def envbuilder(*words):
    return subprocess.run(
        [sys.executable, "-m", "envbuilder", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_an_image_is_built_again_from_its_own_lock_with_every_digest_the_same(hello, tmp_path):
    done = envbuilder("verify", f"oci:{hello.store}:{hello.digest}", "--work", tmp_path, "--json")
    value = json.loads(done.stdout)

    assert (done.returncode, value["digest"]) == (0, hello.digest), done.stderr
    assert [each["digest"] for each in value["layers"]] == [each["digest"] for each in hello.plain["layers"]]
    assert all(each["same"] for each in value["layers"])
    assert list(tmp_path.iterdir()) == []


def test_the_attached_sboms_are_printed_as_they_are(hello):
    reference = f"oci:{hello.store}:{hello.digest}"
    spdx = json.loads(envbuilder("inspect", reference, "--sbom", "spdx").stdout)
    cyclonedx = json.loads(envbuilder("inspect", reference, "--sbom", "cyclonedx").stdout)

    assert spdx["spdxVersion"] == "SPDX-2.3"
    assert cyclonedx["metadata"]["component"]["hashes"][0]["content"] == hello.digest.partition(":")[2]
    assert {each["name"] for each in cyclonedx["components"]} >= {"libc6", "python3.13", "numpy"}


def test_a_build_that_goes_to_a_registry_can_be_read_and_verified_there(cli, registry, hello, tmp_path):
    there = f"{registry.host}/verified/hello:1"
    cli("build", "hello", "--to", there)

    listed = cli.json("discover", there)
    spdx = json.loads(cli("inspect", there, "--sbom", "spdx").stdout)
    verified = cli.json("verify", there, "--work", str(tmp_path / "work"))

    assert {each["artifactType"] for each in listed["referrers"]} >= {*KINDS}
    assert "numpy" in {each["name"] for each in spdx["packages"]}
    assert verified["digest"] == hello.digest


def test_documents_that_a_registry_lacks_are_sent_with_the_next_build(cli, registry, hello):
    there = f"{registry.host}/documents/hello:1"
    cli("push", "hello", there)
    assert not {each["artifactType"] for each in cli.json("discover", there)["referrers"]} & {*KINDS}

    first, second = (cli.json("build", "hello", "--to", there)[0] for _ in range(2))

    assert {each["artifactType"] for each in cli.json("discover", there)["referrers"]} >= {*KINDS}
    assert first["digest"] == second["digest"] == hello.digest
    assert first["copied_bytes"] > second["copied_bytes"] == 0
