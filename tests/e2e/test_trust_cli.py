"""Artifacts, signatures, tags and collection from the command line, against Debian's docker-registry."""

import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

pytestmark = pytest.mark.slow


@pytest.fixture
def keys(tmp_path):
    key = ed25519.Ed25519PrivateKey.generate()
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "k.key").write_bytes(private)
    (tmp_path / "k.pub").write_bytes(public)
    return tmp_path / "k.key", tmp_path / "k.pub"


@pytest.fixture
def there(registry, layout, fresh, tmp_path):
    name = f"{registry.host}/trust/{tmp_path.name.replace('_', '-').lower()}"
    fresh("push", f"oci:{layout}", f"{name}:1")
    return name


def test_an_image_is_signed_and_only_then_resolved_under_a_policy(fresh, there, registry, keys, tmp_path):
    private, public = keys
    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[rule]]\nimages = ["{registry.host}/trust/**"]\nany-of = [{{ key = "{public.name}" }}]\n')

    assert "no signature at all" in fresh("resolve", f"{there}:1", "--policy", str(policy), status=3).stderr
    pinned = fresh("sign", f"{there}:1", "--key", str(private)).stdout.strip()
    resolved = fresh.json("resolve", f"{there}:1", "--policy", str(policy))

    assert resolved["pinned"] == pinned
    assert resolved["trust"] == {"policy": str(policy), "signedBy": ["k.pub"]}
    assert fresh("signatures", f"{there}:1", "--key", str(public)).stdout.strip() == pinned


def test_files_are_attached_and_discovered(fresh, there, tmp_path):
    (tmp_path / "note.txt").write_text("hello")

    digest = fresh("attach", f"{there}:1", str(tmp_path / "note.txt"), "--type", "text/plain").stdout.strip()

    (found,) = fresh.json("discover", f"{there}:1")["referrers"]
    assert (found["digest"], found["artifactType"]) == (digest, "text/plain")
    assert fresh("tags", there).stdout.split() == ["1"]


def test_a_registry_that_deletes_no_tags_says_what_to_do(fresh, there):
    """distribution 2.8 deletes manifests only (registry.md 9)."""
    refused = fresh("tags", there, "--delete", "1", status=4)

    assert "by its digest" in refused.stderr


def test_a_repository_is_collected_after_it_was_shown(fresh, there, layout):
    fresh("push", f"oci:{layout}", f"{there}:2")
    assert fresh.json("gc", there, "--expire", "1", "--dry-run")["objects"] == []

    assert fresh.json("gc", there, "--expire", "*", "--dry-run")["tags"] == ["1", "2"]
    fresh("gc", there, "--expire", "*")

    assert json.loads(fresh("tags", there, "--json").stdout)["tags"] == []
