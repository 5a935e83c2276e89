"""oras-py and we read what the other pushed; over our transport its code is verified."""

import io
import sys
from functools import partial

import oras.client
import pytest

from envbuilder.digest import Digest, DigestMismatch, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.oras import OrasMissing, oras_registry
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.registry import FakeRegistry, body

pytestmark = [
    pytest.mark.slow,
    # requests' own pool is closed when it is collected, not by oras-py
    pytest.mark.filterwarnings("ignore:.*unclosed.*:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KIND = "application/vnd.test.notes"


@pytest.fixture
def client():
    with RegistryClient() as client:
        yield client


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A file to push; oras-py wants it below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"note" * 50_000)
    return tmp_path / "notes.txt"


def artifact(target, tag):
    """An artifact that we push: its manifest and its bytes."""
    data, empty = b"our bytes" * 1000, b"{}"
    layer = describe(data, KIND, annotations={media_types.TITLE: "ours.txt"})
    config = describe(empty, "application/vnd.oci.empty.v1+json")
    for what, content in ((layer, data), (config, empty)):
        target.push(what, partial(io.BytesIO, content))
    manifest = Manifest(config=config, layers=(layer,), artifact_type=KIND).dump()
    root = describe(manifest, media_types.OCI_MANIFEST)
    target.push(root, partial(io.BytesIO, manifest))
    target.tag(root, tag)
    return root, data


def read_by_us(target, tag):
    with target.fetch(target.lookup(tag)) as stream:
        manifest = parse_document(stream.read(), source=tag)
    [layer] = manifest.layers
    with target.fetch(layer) as stream:
        return layer.annotations[media_types.TITLE], stream.read()


@pytest.mark.parametrize("by", ["oras-py", "adapter"])
def test_we_read_what_it_pushed(registry, client, notes, by):
    name = f"{registry.host}/oras/{by}:1"
    pusher = oras.client.OrasClient(insecure=True) if by == "oras-py" else oras_registry(client, registry.host)
    pusher.push(target=name, files=[f"notes.txt:{KIND}"])

    target = RegistryTarget(RegistryReference(registry.host, f"oras/{by}"), client)

    assert read_by_us(target, "1") == ("notes.txt", notes.read_bytes())


@pytest.mark.parametrize("by", ["oras-py", "adapter"])
def test_it_reads_what_we_pushed(registry, client, tmp_path, by):
    target = RegistryTarget(RegistryReference(registry.host, f"ours/{by}"), client, writable=True)
    _, data = artifact(target, "1")
    puller = oras.client.OrasClient(insecure=True) if by == "oras-py" else oras_registry(client, registry.host)

    [file] = puller.pull(target=f"{target.name}:1", outdir=str(tmp_path / "out"))

    assert file.endswith("ours.txt")
    assert (tmp_path / "out/ours.txt").read_bytes() == data


def test_the_adapter_lists_and_deletes_tags(registry, client):
    target = RegistryTarget(RegistryReference(registry.host, "ours/tags"), client, writable=True)
    artifact(target, "1")
    adapter = oras_registry(client, registry.host)

    assert adapter.get_tags(target.name) == ["1"]


def test_bytes_that_are_not_what_was_named_reach_no_file(client, tmp_path):
    """oras-py itself hands them over (oras-py#247)."""
    with FakeRegistry() as evil:
        target = RegistryTarget(RegistryReference(evil.host, "a/b"), client)
        artifact(target, "1")
        evil.fault("GET", "/blobs/", body(bytes.upper))

        with pytest.raises(DigestMismatch):
            oras_registry(client, evil.host).pull(target=f"{target.name}:1", outdir=str(tmp_path / "out"))

    assert list((tmp_path / "out").iterdir()) == []


def test_a_pinned_manifest_is_verified(client):
    with FakeRegistry() as evil:
        target = RegistryTarget(RegistryReference(evil.host, "a/b"), client)
        root, _ = artifact(target, "1")
        evil.fault("GET", "/manifests/", body(lambda data: data.replace(b"ours", b"evil")))

        with pytest.raises(DigestMismatch):
            oras_registry(RegistryClient(), evil.host).get_manifest(f"{target.name}@{root.digest}")
        assert Digest.of(evil.manifests["a/b", "1"][1]) == root.digest


def test_without_the_extra_its_name_is_said(client, monkeypatch):
    monkeypatch.setitem(sys.modules, "oras.provider", None)

    with pytest.raises(OrasMissing) as caught:
        oras_registry(client, "registry.example")
    assert "envbuilder[oras]" in caught.value.hint
