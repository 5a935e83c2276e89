import io
import sys
from functools import partial

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from envbuilder.digest import Digest, describe
from envbuilder.errors import SpecErrors
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.cosign import BadSignature, sign_bundle
from envbuilder.registry.keyless import Identity, NoSigstore, verify_keyless
from envbuilder.registry.policy import NoPolicy, PolicyDenied, Rule, enforce, load_policy
from envbuilder.registry.signatures import NotSigned, sign
from envbuilder.store.memory import MemoryTarget

_RELEASE, _QA, _OTHER = (ed25519.Ed25519PrivateKey.generate() for _ in range(3))


@pytest.fixture
def policy(tmp_path):
    for name, key in (("release", _RELEASE), ("qa", _QA)):
        (tmp_path / f"{name}.pub").write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )

    def make(text):
        (tmp_path / "policy.toml").write_text(text)
        return load_policy(tmp_path / "policy.toml")

    return make


@pytest.fixture
def target():
    return MemoryTarget("r.test/prod/app")


@pytest.fixture
def subject(target):
    data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=()).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    return what


def rule(images, signers):
    return f"[[rule]]\nimages = {images}\n{signers}\n"


def any_of(*names):
    return "any-of = [" + ", ".join(f'{{ key = "{name}.pub" }}' for name in names) + "]"


def test_one_signer_of_a_rule_suffices(policy, target, subject):
    sign(target, subject, _QA, target.name)

    trust = enforce(policy(rule('["r.test/**"]', any_of("release", "qa"))), target, subject, target.name)

    assert trust.signed_by == ("qa.pub",)


def test_every_rule_that_matches_must_be_met(policy, target, subject):
    rules = policy(
        rule('["r.test/**"]', any_of("release")) + rule('["**/app"]', any_of("qa")) + rule('["**"]', "unsigned = true")
    )
    sign(target, subject, _RELEASE, target.name)

    with pytest.raises(NotSigned):
        enforce(rules, target, subject, target.name)
    sign(target, subject, _QA, target.name, "simple")
    assert enforce(rules, target, subject, target.name).signed_by == ("release.pub", "qa.pub")


def test_a_signature_by_somebody_else_is_none(policy, target, subject):
    sign(target, subject, _OTHER, target.name)

    with pytest.raises(NotSigned):
        enforce(policy(rule('["**"]', any_of("release", "qa"))), target, subject, target.name)


def test_an_image_that_no_rule_is_about_is_refused(policy, target, subject):
    with pytest.raises(PolicyDenied):
        enforce(policy(rule('["other.test/**"]', "unsigned = true")), target, subject, target.name)


def test_what_need_not_be_signed_passes(policy, target, subject):
    assert enforce(policy(rule('["r.test/prod/*"]', "unsigned = true")), target, subject, target.name).signed_by == ()


def test_a_source_that_does_not_answer_is_not_taken_for_unsigned(policy, subject):
    class Broken(MemoryTarget):
        def tag_state(self, tag):
            raise OSError(tag)

    with pytest.raises(OSError, match="sha256-"):
        enforce(policy(rule('["**"]', any_of("release"))), Broken(), subject, "r.test/a")


@pytest.mark.parametrize(
    ("pattern", "place", "met"),
    [
        ("r.test/a", "r.test/a", True),
        ("r.test/a", "r.test/ab", False),
        ("r.test/a", "xr.test/a", False),
        ("r.test/*", "r.test/a/b", False),
        ("r.test/**", "r.test/a/b", True),
        ("r.test/*-prod", "r.test/x-prod", True),
        ("r.test/**", "r.test.evil/a", False),
        ("rxtest/**", "r.test/a", False),
        ("r.test/[a]", "r.test/a", False),
        ("r.test/**", "r.test/a\nb", False),
        ("r.test/**", "R.Test/a", True),
        ("r.test/**", "r.test:443/a", True),
        ("R.test:443/**", "r.test/a", True),
        ("r.test:5000/**", "r.test:05000/a", True),
        ("r.test/**", "r.test:5000/a", False),
        ("docker.io/team/*", "registry-1.docker.io/team/a", True),
        ("index.docker.io/team/*", "docker.io/team/a", True),
        ("oci:/Dir/**", "oci:/dir/a", False),
    ],
)
def test_patterns_mean_what_they_say(pattern, place, met):
    assert Rule(images=(pattern,), signers={}).matches(place) is met


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rule = 1",
        "rule = [1]",
        "[[rules]]\n",
        rule("[]", "unsigned = true"),
        rule('"r.test/**"', "unsigned = true"),
        rule('["**"]', ""),
        rule('["**"]', "any-of = []"),
        rule('["**"]', "unsigned = false"),
        rule('["**"]', any_of("release") + "\nunsigned = true"),
        rule('["**"]', "all-of = []\nunsigned = true"),
        rule('["**"]', any_of("missing")),
        rule('["**"]', 'any-of = [{ identity = "a@b.test" }]'),
        rule('["**"]', 'any-of = [{ identity = "a", issuer = "" }]'),
        rule('["**"]', 'any-of = [{ key = "release.pub", issuer = "x" }]'),
        "[[rule",
    ],
)
def test_a_policy_with_a_mistake_is_refused_whole(policy, text):
    with pytest.raises(SpecErrors):
        policy(text)


def test_a_policy_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(NoPolicy):
        load_policy(tmp_path / "none.toml")


def test_a_key_suffices_where_identities_cannot_be_checked(policy, target, subject, monkeypatch):
    """A signer that this machine cannot check is not met; another of the rule may be."""
    who = '{ identity = "a@b.test", issuer = "https://i.test" }'
    rules = policy(rule('["**"]', f'any-of = [{who}, {{ key = "release.pub" }}]'))
    monkeypatch.setitem(sys.modules, "sigstore.errors", None)
    sign(target, subject, _QA, target.name)

    with pytest.raises(NoSigstore):
        enforce(rules, target, subject, target.name)
    sign(target, subject, _RELEASE, target.name)
    assert enforce(rules, target, subject, target.name).signed_by == ("release.pub",)


@pytest.mark.slow
def test_a_bundle_by_a_key_is_not_by_an_identity():
    """sigstore itself refuses it, before anything is asked of a network."""
    pytest.importorskip("sigstore")
    who = Identity(identity="a@b.test", issuer="https://issuer.test")

    for bundle in (sign_bundle(_RELEASE, Digest.of(b"x")), b"{}", b"", b"\xff"):
        with pytest.raises(BadSignature):
            verify_keyless(bundle, who, Digest.of(b"x"), source="s")


def test_an_identity_may_name_its_trust_root_relative_to_the_policy(policy, tmp_path):
    signer = 'any-of = [{ identity = "a@b.test", issuer = "https://i.test", trust-root = "root.json" }]'
    with pytest.raises(SpecErrors, match=r"root\.json: no such file"):
        policy(rule('["**"]', signer))

    (tmp_path / "root.json").write_text("{}")
    (only,) = policy(rule('["**"]', signer)).rules
    assert [who.trust_root for who in only.signers.values()] == [tmp_path / "root.json"]
