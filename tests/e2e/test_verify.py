"""``verify`` and ``inspect --sbom`` on the image that the session built."""

import io
import json
import subprocess
import sys
import tarfile

import pytest
import zstandard

from envbuilder.digest import describe
from envbuilder.image.attached import KINDS, attached
from envbuilder.image.documents import attach_document
from envbuilder.layer.frames import FrameWriter
from envbuilder.oci import media_types
from envbuilder.store.layout import LayoutTarget

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


def forged(hello, folder):
    """``hello`` with one byte of one file changed, every document above it made to agree, its lock attached."""
    store = LayoutTarget(folder, create=True)
    layers = hello.plain["layers"]
    at = next(n for n, each in enumerate(layers) if each["annotations"][media_types.LAYER_ID] == "hello/wheels-00")
    stored = io.BytesIO(hello.blob(layers[at]["digest"]).read_bytes())
    plain = zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True)
    tar = bytearray(plain.read())
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        victim = next(each for each in archive if each.isreg() and each.name.endswith("__init__.py") and each.size)
    tar[victim.offset_data] ^= 1
    out = io.BytesIO()
    writer = FrameWriter(out)
    writer.write(bytes(tar))
    framed = writer.finish()

    def put(value):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        kind = value.get("mediaType", "") if isinstance(value, dict) else ""
        what = describe(data, kind)
        store.push(what, lambda: io.BytesIO(data))
        return what

    for layer in layers:
        put(hello.blob(layer["digest"]).read_bytes())
    put(out.getvalue())
    ours = {**layers[at], **framed.blob.to_json()}
    ours["annotations"] = {**layers[at]["annotations"], **framed.blob.annotations}
    config = json.loads(json.dumps(hello.plain_config))
    config["rootfs"]["diff_ids"][at] = str(framed.diff_id)
    told = put(config)
    image = {
        **hello.plain,
        "config": {**hello.plain["config"], "digest": str(told.digest), "size": told.size},
        "layers": [*layers[:at], ours, *layers[at + 1 :]],
    }
    what = put(image)
    first = {**hello.index["manifests"][0], "digest": str(what.digest), "size": what.size}
    root = put({**hello.index, "manifests": [first]})
    theirs = LayoutTarget(hello.store)
    for name, data in attached(theirs, theirs.lookup(hello.digest), media_types.LOCK_ARTIFACT):
        attach_document(store, root, media_types.LOCK_ARTIFACT, media_types.LOCK_TOML, [(name, data)])
    store.tag(root, "forged")
    return victim.name


def test_of_a_forged_image_the_layer_and_the_first_file_that_differs_are_named(hello, tmp_path):
    name = forged(hello, tmp_path / "forged")

    done = envbuilder("verify", f"oci:{tmp_path}/forged:forged", "--work", tmp_path / "work")

    assert done.returncode == 3
    assert "layer hello/wheels-00: want sha256:" in done.stderr
    assert f"the first difference is '{name}': content" in done.stderr
    assert "hint:" in done.stderr
