"""crane, oras and regctl read the real image from both registries, and what they copy has its digest."""

import hashlib
import io
import json
import tarfile

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture
def there(shelf):
    return f"{shelf.host}/env/hello"


@pytest.fixture(scope="module")
def oras(tool):
    return tool("oras")


@pytest.fixture
def regctl(tool, shelf):
    return tool("regctl", "--host", f"reg={shelf.host},tls=disabled")


def digest_of(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def text(done):
    return done.stdout.decode().strip()


def test_crane_validates_the_index_and_both_manifests(there, crane, hello):
    # Without --fast, crane takes every layer for gzip (go-containerregistry 1826); the next test reads the layers.
    for reference in (f"{there}:1", f"{there}@{hello.plain_digest}", f"{there}@{hello.erofs_digest}"):
        assert text(crane("validate", "--fast", "--remote", reference)) == f"PASS: {reference}"


def test_crane_refuses_the_layers_of_every_zstd_image_alike(shelf, crane, there):
    """When this fails, crane has learned to read zstd: drop --fast above."""
    done = crane("validate", "--remote", f"{there}:1", check=False)

    assert (done.status, b"gzip: invalid header" in done.stderr) == (1, True)


def test_crane_reads_every_layer(there, crane, hello, tmp_path):
    crane("export", f"{there}:1", tmp_path / "flat.tar")

    with tarfile.open(tmp_path / "flat.tar") as tar:
        names = {member.name for member in tar}
    assert len(names) > 10_000
    assert {"usr/bin/python3.13", "opt/env/pyvenv.cfg", "var/lib/dpkg/status", "etc/ld.so.cache"} <= names


def test_crane_names_the_digests(there, crane, hello):
    assert text(crane("digest", f"{there}:1")) == hello.digest
    assert text(crane("digest", "--platform", "linux/amd64", f"{there}:1")) == hello.plain_digest
    assert digest_of(crane("manifest", f"{there}:1").stdout) == hello.digest
    assert json.loads(crane("config", f"{there}@{hello.plain_digest}").stdout) == hello.plain_config


def test_crane_pulls_a_layout_and_pushes_it_with_the_same_digest(there, shelf, crane, hello, cli, tmp_path):
    crane("pull", "--format=oci", f"{there}:1", tmp_path / "layout")
    crane("push", tmp_path / "layout", f"{shelf.host}/crane/pushed:1")

    assert text(crane("digest", f"{shelf.host}/crane/pushed:1")) == hello.digest
    assert cli.json("resolve", f"oci:{tmp_path}/layout")["digest"] == hello.digest
    assert cli.json("pull", f"{shelf.host}/crane/pushed:1", "--to", f"oci:{tmp_path}/back:1")["digest"] == hello.digest


def test_crane_copies_with_the_same_digest(there, shelf, crane, hello, cli):
    crane("copy", f"{there}:1", f"{shelf.host}/crane/copied:1")

    resolved = cli.json("resolve", f"{shelf.host}/crane/copied:1")
    assert (resolved["digest"], resolved["start"]) == (hello.digest, "lazy")


def test_an_image_that_went_through_cranes_docker_archive_still_runs(there, shelf, crane, cli, tmp_path):
    """It comes back as zstd layers that are called gzip; container engines look at the bytes, and so do we."""
    crane("pull", f"{there}:1", tmp_path / "hello.tar")
    crane("push", tmp_path / "hello.tar", f"{shelf.host}/crane/docker:1")

    ran = cli(
        "run", f"{shelf.host}/crane/docker:1", "--", "python3", "-c", "import numpy; print(numpy.arange(5).sum())"
    )

    assert ran.stdout == "10\n"


def test_oras_fetches_the_stored_documents(there, oras, hello):
    assert digest_of(oras("manifest", "fetch", "--plain-http", f"{there}:1").stdout) == hello.digest
    plain = json.loads(oras("manifest", "fetch", "--plain-http", "--platform=linux/amd64", "--descriptor", f"{there}:1").stdout)  # fmt: skip
    assert plain["digest"] == hello.plain_digest
    assert text(oras("resolve", "--plain-http", f"{there}:1")) == hello.digest
    assert text(oras("repo", "tags", "--plain-http", there)) == "1"


def test_oras_discovers_an_index_without_referrers(there, oras, hello):
    found = json.loads(oras("discover", "--plain-http", "--format=json", f"{there}:1").stdout)

    assert (found["digest"], found["referrers"]) == (hello.digest, [])


def test_oras_copies_to_a_layout_and_back_with_the_same_digest(there, shelf, oras, hello, cli, tmp_path):
    back = f"{shelf.host}/oras/back:1"
    oras("copy", "--from-plain-http", "--to-oci-layout", f"{there}:1", f"{tmp_path}/layout:1")
    oras("copy", "--from-oci-layout", "--to-plain-http", f"{tmp_path}/layout:1", back)

    assert cli.json("resolve", f"oci:{tmp_path}/layout:1")["digest"] == hello.digest
    assert cli.json("pull", back, "--to", f"oci:{tmp_path}/back:1")["digest"] == hello.digest


def test_oras_copies_our_store(shelf, oras, hello, cli):
    oras("copy", "--from-oci-layout", "--to-plain-http", f"{hello.store}:hello-1", f"{shelf.host}/oras/store:1")

    assert cli.json("resolve", f"{shelf.host}/oras/store:1")["digest"] == hello.digest


def test_regctl_reads_the_stored_documents(there, regctl, hello):
    assert digest_of(regctl("manifest", "get", "--format=raw-body", f"{there}:1").stdout) == hello.digest
    assert text(regctl("manifest", "head", f"{there}:1")) == hello.digest
    assert text(regctl("manifest", "head", "--platform=linux/amd64", f"{there}:1")) == hello.plain_digest
    inspected = json.loads(regctl("image", "inspect", "--platform=linux/amd64", f"{there}:1").stdout)
    assert inspected["rootfs"] == hello.plain_config["rootfs"]


def test_regctl_copies_with_the_same_digest(there, shelf, regctl, hello, cli, tmp_path):
    regctl("image", "copy", f"{there}:1", f"{shelf.host}/regctl/copied:1")
    regctl("image", "copy", f"{there}:1", f"ocidir://{tmp_path}/layout:1")

    assert cli.json("resolve", f"{shelf.host}/regctl/copied:1")["digest"] == hello.digest
    assert cli.json("pull", f"oci:{tmp_path}/layout:1", "--to", f"oci:{tmp_path}/back:1")["digest"] == hello.digest


def test_regctl_exports_an_archive_that_we_read_and_imports_ours(there, shelf, regctl, hello, cli, tmp_path):
    regctl("image", "export", f"{there}:1", tmp_path / "theirs.tar")
    cli("push", hello.reference, f"oci-archive:{tmp_path}/ours.tar:1")
    regctl("image", "import", f"{shelf.host}/regctl/imported:1", tmp_path / "ours.tar")

    assert (
        cli.json("pull", f"oci-archive:{tmp_path}/theirs.tar", "--to", f"oci:{tmp_path}/back:1")["digest"]
        == hello.digest
    )
    assert cli.json("resolve", f"{shelf.host}/regctl/imported:1")["digest"] == hello.digest


def test_regctl_reads_files_of_the_layers(there, regctl):
    status = regctl("image", "get-file", "--platform=linux/amd64", f"{there}:1", "/opt/env/pyvenv.cfg").stdout

    assert b"version" in io.BytesIO(status).read()
