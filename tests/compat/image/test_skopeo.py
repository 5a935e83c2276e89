"""skopeo inspects and copies the real image, and every copy has its digest."""

import hashlib
import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture
def there(shelf):
    """``env/hello`` as skopeo writes it."""
    return f"docker://{shelf.host}/env/hello"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(folder):
    """Digests of the blobs and manifests in a ``dir:``, each under the name that skopeo gave it."""
    return {path.name: f"sha256:{sha256(path)}" for path in folder.iterdir() if path.name != "version"}


def test_inspect_shows_the_plain_image_under_the_digest_of_the_index(there, skopeo, hello):
    seen = json.loads(skopeo("inspect", f"{there}:1").stdout)

    assert seen["Digest"] == hello.digest
    assert (seen["Os"], seen["Architecture"]) == ("linux", "amd64")
    assert seen["Layers"] == [layer["digest"] for layer in hello.plain["layers"]]
    assert seen["Env"] == hello.plain_config["config"]["Env"]
    assert seen["RepoTags"] == ["1"]


def test_the_raw_documents_are_the_stored_bytes(there, skopeo, hello):
    for reference, digest in ((":1", hello.digest), (f"@{hello.plain_digest}", hello.plain_digest)):
        raw = skopeo("inspect", "--raw", there + reference).stdout
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == digest

    assert json.loads(skopeo("inspect", "--config", f"{there}:1").stdout)["rootfs"] == hello.plain_config["rootfs"]


def test_all_of_it_goes_to_a_directory_and_back_with_one_digest(there, shelf, skopeo, hello, cli, tmp_path):
    folder = tmp_path / "dir"
    skopeo("copy", "--all", "--preserve-digests", f"{there}:1", f"dir:{folder}")
    skopeo("copy", "--all", "--preserve-digests", f"dir:{folder}", f"docker://{shelf.host}/skopeo/all:1")

    assert set(files_of(folder).values()) == hello.blobs
    assert files_of(folder)["manifest.json"] == hello.digest
    assert cli.json("resolve", f"{shelf.host}/skopeo/all:1")["digest"] == hello.digest
    assert cli.json("pull", f"{shelf.host}/skopeo/all:1", "--to", f"oci:{tmp_path}/back:1")["copied"] == len(
        hello.blobs
    )


def test_the_plain_manifest_alone_goes_to_a_directory_and_back_with_its_digest(there, shelf, skopeo, hello, cli, tmp_path):  # fmt: skip
    folder = tmp_path / "dir"
    skopeo("copy", "--preserve-digests", f"{there}@{hello.plain_digest}", f"dir:{folder}")
    skopeo("copy", "--preserve-digests", f"dir:{folder}", f"docker://{shelf.host}/skopeo/plain:1")

    assert files_of(folder)["manifest.json"] == hello.plain_digest
    resolved = cli.json("resolve", f"{shelf.host}/skopeo/plain:1")
    assert (resolved["digest"], resolved["start"]) == (hello.plain_digest, "full")


def test_without_all_the_tag_gives_the_plain_manifest(there, skopeo, hello, tmp_path):
    skopeo("copy", "--preserve-digests", f"{there}:1", f"dir:{tmp_path}/dir")

    assert files_of(tmp_path / "dir")["manifest.json"] == hello.plain_digest


def test_our_store_goes_to_a_registry_by_skopeo_and_is_pulled_by_us(shelf, skopeo, hello, cli, tmp_path):
    there = f"{shelf.host}/skopeo/store:1"
    skopeo("copy", "--all", "--preserve-digests", hello.reference, f"docker://{there}")

    pulled = cli.json("pull", there, "--to", f"oci:{tmp_path}/pulled:1")

    assert (pulled["digest"], pulled["copied"]) == (hello.digest, len(hello.blobs))
    stored = list((tmp_path / "pulled/blobs/sha256").iterdir())
    assert {f"sha256:{sha256(blob)}" for blob in stored} == {f"sha256:{blob.name}" for blob in stored} == hello.blobs


def test_a_layout_that_skopeo_wrote_is_ours_again(there, skopeo, hello, cli, tmp_path):
    skopeo("copy", "--all", "--preserve-digests", f"{there}:1", f"oci:{tmp_path}/layout:1")

    resolved = cli.json("resolve", f"oci:{tmp_path}/layout:1")

    assert (resolved["digest"], resolved["start"]) == (hello.digest, "lazy")
