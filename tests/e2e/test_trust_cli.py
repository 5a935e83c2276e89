"""Artifacts, signatures, tags and collection from the command line, against Debian's docker-registry."""

import json
import subprocess

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from envbuilder.digest import Digest
from envbuilder.registry.cosign import BUNDLE
from envbuilder.testing.fulcio import Sigstore

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


def test_a_tag_beside_a_digest_that_names_something_else_is_said(fresh, there, keys):
    pinned = fresh("sign", f"{there}:1", "--key", str(keys[0])).stdout.strip()
    digest = pinned.partition("@")[2]

    same = fresh("resolve", f"{there}:1@{digest}")
    gone = fresh("resolve", f"{there}:2@{digest}")
    other = fresh("resolve", f"{there}:{digest.replace(':', '-')}@{digest}")  # the list of its referrers

    assert all(pinned in done.stdout for done in (same, gone, other))
    assert "the digest counts" not in same.stderr
    assert "the tag names nothing now; the digest counts" in gone.stderr
    assert "the tag names sha256:" in other.stderr


def test_many_references_are_resolved_at_once_and_one_that_fails_leaves_the_others_alone(fresh, there):
    pinned = fresh.json("resolve", f"{there}:1")["pinned"]

    done = fresh("resolve", f"{there}:1", f"{there}:none", pinned, "--json", status=6)

    first, absent, last = json.loads(done.stdout)["references"]
    assert first["pinned"] == last["pinned"] == pinned
    assert (absent["asked"], absent["exitCode"]) == (f"{there}:none", 6)
    assert f"error: {there}:none: " in done.stderr
    assert done.stderr.endswith("\nhint: Check the name and the tag.\n")
    assert fresh("resolve", f"{there}:1", pinned).stdout.count(pinned) == 3


def test_a_push_takes_all_that_is_attached_along_when_it_is_asked_to(fresh, there, keys, tmp_path):
    private, public = keys
    first = f"oci:{tmp_path}/first:1"
    fresh("pull", f"{there}:1", "--to", first)
    for form in ("bundle", "simple"):
        fresh("sign", first, "--key", str(private), "--form", form)
    fresh("push", first, f"{there}/plain:1")

    sent = fresh.json("push", first, f"{there}/whole:1", "--referrers")

    assert len(sent["referrers"]) == 2
    assert "no signature" in fresh("signatures", f"{there}/plain:1", "--key", str(public), status=3).stderr
    assert fresh.json("signatures", f"{there}/whole:1", "--key", str(public))["verified"]
    beside = f"sha256-{sent['digest'].partition(':')[2]}.sig"
    assert beside in fresh.json("tags", f"{there}/whole", "--all")["tags"]
    assert beside not in fresh.json("tags", f"{there}/plain", "--all")["tags"]


def test_files_are_attached_and_discovered(fresh, there, tmp_path):
    (tmp_path / "note.txt").write_text("hello")

    digest = fresh("attach", f"{there}:1", str(tmp_path / "note.txt"), "--type", "text/plain").stdout.strip()

    (found,) = fresh.json("discover", f"{there}:1")["referrers"]
    assert (found["digest"], found["artifactType"]) == (digest, "text/plain")
    assert fresh("tags", there).stdout.split() == ["1"]


def test_a_registry_that_deletes_no_tags_says_what_to_do(fresh, there):
    """distribution 2.8 deletes manifests only (registry.md 9)."""
    refused = fresh("tags", there, "--delete", "1", status=6)

    assert "by its digest" in refused.stderr


def test_a_repository_is_collected_after_it_was_shown(fresh, there, layout):
    fresh("push", f"oci:{layout}", f"{there}:2")
    assert fresh.json("gc", there, "--expire", "1", "--dry-run")["objects"] == []

    assert fresh.json("gc", there, "--expire", "*", "--dry-run")["tags"] == ["1", "2"]
    fresh("gc", there, "--expire", "*")

    assert json.loads(fresh("tags", there, "--json").stdout)["tags"] == []


def test_what_was_collected_is_forgotten_and_pushed_again(fresh, registry, layout, tmp_path, require_tool):
    """A push trusts its memory of a day; who deletes must not leave it behind."""
    here, place = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}, f"{registry.host}/trust/collected"
    fresh("push", f"oci:{layout}", f"{place}:1", **here)
    assert "is this blob there" not in fresh("push", f"oci:{layout}", f"{place}:1", "--debug", **here).stderr

    fresh("gc", place, "--expire", "*", **here)
    swept = [require_tool("docker-registry"), "garbage-collect", str(registry.directory / "config.yml")]
    subprocess.run(swept, check=True, capture_output=True)
    again = fresh("push", f"oci:{layout}", f"{place}:1", "--debug", **here).stderr

    assert "is this blob there" in again
    assert "MANIFEST_BLOB_UNKNOWN" not in again
    fresh("pull", f"{place}:1", "--to", f"oci:{tmp_path}/back:1")


def test_attaching_and_signing_remember_what_the_registry_cannot_do(fresh, there, keys, tmp_path):
    here = {"ENVBUILDER_CACHE": str(tmp_path / "cache")}
    (tmp_path / "note.txt").write_text("hello")
    words = ("attach", f"{there}:1", str(tmp_path / "note.txt"), "--type", "text/plain", "--debug")
    assert "/referrers/" in fresh(*words, **here).stderr

    assert "/referrers/" not in fresh(*words, "--annotation", "a=b", **here).stderr
    assert "/referrers/" not in fresh("sign", f"{there}:1", "--key", str(keys[0]), "--debug", **here).stderr


def test_an_image_that_the_policy_denies_never_starts(fresh, there, registry, keys, tmp_path):
    (tmp_path / "policy.toml").write_text(
        f'[[rule]]\nimages = ["{registry.host}/trust/**"]\nany-of = [{{ key = "{keys[1].name}" }}]\n'
    )
    under = {"ENVBUILDER_RESOLVE_POLICY": str(tmp_path / "policy.toml")}
    place = tmp_path / "root"

    for words in (
        ("run", f"{there}:1", "--", "true"),
        ("run", f"{there}:1", "--dry-run", "--", "true"),
        ("mount", f"{there}:1", str(place)),
        ("trace", f"{there}:1", "--", "true"),
        ("trace", f"{there}:1", "--dry-run", "--", "true"),
        ("pull", f"{there}:1"),
        ("pull", f"{there}:1", "--to", f"oci:{tmp_path}/there:1"),
    ):
        assert "no signature at all" in fresh(*words, status=3, **under).stderr
    assert not place.exists()
    assert list((tmp_path / "state").glob("mounts/*")) == []
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "there").exists()

    fresh("sign", f"{there}:1", "--key", str(keys[0]))
    fresh("run", f"{there}:1", "--dry-run", "--", "true", **under)
    fresh("pull", f"{there}:1", **under)


def test_an_image_that_no_rule_is_about_never_starts(fresh, there, layout, tmp_path):
    (tmp_path / "policy.toml").write_text('[[rule]]\nimages = ["elsewhere.example/**"]\nunsigned = true\n')
    under = {"ENVBUILDER_RESOLVE_POLICY": str(tmp_path / "policy.toml")}

    assert "no rule" in fresh("run", f"{there}:1", "--", "true", status=3, **under).stderr
    assert "no rule" in fresh("run", f"oci:{layout}", "--", "true", status=3, **under).stderr


def test_a_keyless_signature_is_checked_against_a_trust_root_of_one_s_own(fresh, there, registry, tmp_path):
    pytest.importorskip("sigstore")
    theirs, who = Sigstore(), ("alice@example.test", "https://issuer.test")
    (tmp_path / "root.json").write_bytes(theirs.trust_root)
    pinned = fresh.json("resolve", f"{there}:1")["pinned"]
    (tmp_path / "bundle.json").write_bytes(theirs.sign(Digest(pinned.partition("@")[2]), *who))
    fresh("attach", f"{there}:1", str(tmp_path / "bundle.json"), "--type", BUNDLE)
    asked = ("signatures", f"{there}:1", "--identity", who[0], "--issuer", who[1])

    assert fresh(*asked, "--trust-root", str(tmp_path / "root.json")).stdout.strip() == pinned
    # The public service never heard of it.
    fresh(*asked, status=3)
    (tmp_path / "policy.toml").write_text(
        f'[[rule]]\nimages = ["{registry.host}/trust/**"]\n'
        f'any-of = [{{ identity = "{who[0]}", issuer = "{who[1]}", trust-root = "root.json" }}]\n'
    )
    fresh("pull", f"{there}:1", ENVBUILDER_RESOLVE_POLICY=str(tmp_path / "policy.toml"))
