"""Keyless signatures, checked by the sigstore package itself against authorities and logs of the test's own."""

import base64
import datetime as dt
import io
import json
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.cosign import SIGNATURE, SIMPLE_SIGNING, BadSignature
from envbuilder.registry.keyless import Identity, verify_keyless
from envbuilder.registry.signatures import NotSigned, signature_tag, verify
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.fulcio import Sigstore

pytest.importorskip("sigstore")

WHO, ISSUER = "alice@example.test", "https://issuer.test"
IMAGE = Digest.of(b"image")


@pytest.fixture(scope="module")
def ours():
    return Sigstore()


@pytest.fixture(scope="module")
def root(ours, tmp_path_factory):
    file = tmp_path_factory.mktemp("root") / "trusted_root.json"
    file.write_bytes(ours.trust_root)
    return file


def check(bundle, root, identity=WHO, issuer=ISSUER, digest=IMAGE):
    verify_keyless(bundle, Identity(identity=identity, issuer=issuer, trust_root=root), digest, source="s")


def test_a_signature_is_checked_to_its_certificate_log_and_time(ours, root):
    check(ours.sign(IMAGE, WHO, ISSUER), root)


@pytest.mark.parametrize(
    "changed", [{"identity": "mallory@example.test"}, {"issuer": "https://other.test"}, {"digest": Digest.of(b"other")}]
)
def test_another_identity_issuer_or_image_is_refused(ours, root, changed):
    with pytest.raises(BadSignature):
        check(ours.sign(IMAGE, WHO, ISSUER), root, **changed)


def test_a_statement_of_another_kind_is_no_signature(ours, root):
    with pytest.raises(BadSignature):
        check(ours.sign(IMAGE, WHO, ISSUER, "https://spdx.dev/Document"), root)


def test_authorities_that_the_trust_root_does_not_name_do_not_count(root, tmp_path):
    with pytest.raises(BadSignature):
        check(Sigstore().sign(IMAGE, WHO, ISSUER), root)


def test_a_certificate_that_had_ended_does_not_count(ours, root):
    check(ours.sign(IMAGE, WHO, ISSUER, late=dt.timedelta(minutes=9)), root)

    with pytest.raises(BadSignature):
        check(ours.sign(IMAGE, WHO, ISSUER, late=dt.timedelta(minutes=11)), root)


@pytest.mark.parametrize("gone", ["inclusionProof", "inclusionPromise", "canonicalizedBody"])
def test_a_log_entry_without_its_proof_is_refused(ours, root, gone):
    bundle = json.loads(ours.sign(IMAGE, WHO, ISSUER))
    del bundle["verificationMaterial"]["tlogEntries"][0][gone]

    with pytest.raises(BadSignature):
        check(json.dumps(bundle).encode(), root)


@pytest.mark.parametrize("text", [None, b"", b"{}", b"\xff"])
def test_a_trust_root_that_is_none_trusts_nobody(ours, tmp_path, text):
    file = tmp_path / "root.json"
    if text is not None:
        file.write_bytes(text)

    with pytest.raises(BadSignature):
        check(ours.sign(IMAGE, WHO, ISSUER), file)


@pytest.fixture
def public():
    """An attestation that cosign made of an image, with the public authorities and log.

    From sigstore/cosign v3.1.3, pkg/cosign/testdata/oci-attestation.sigstore.json (Apache-2.0), byte for byte.
    """
    return (Path(__file__).parent / "data/cosign-attestation.sigstore.json").read_bytes()


def check_public(bundle, identity="cody@soyland.com", issuer="https://github.com/login/oauth"):
    digest = Digest("sha256:732112270d7e59418a8c080b134b24cabd67d250d0d0147a97ed95ba5c280aa4")
    verify_keyless(bundle, Identity(identity=identity, issuer=issuer), digest, source="s")


def test_a_public_bundle_passes_the_trust_root_that_sigstore_brings_along_and_is_no_signature_for_its_predicate(public):
    """Its certificate, log entry, time and identity hold; what it states is an attestation."""
    with pytest.raises(BadSignature, match=r"want a signature .*, got 'https://cosign.sigstore.dev/attestation/v1'"):
        check_public(public)


@pytest.mark.parametrize(
    "changed",
    [{"identity": "mallory@soyland.com"}, {"issuer": "https://accounts.google.com"}],
    ids=lambda each: next(iter(each)),
)
def test_a_public_bundle_of_another_identity_is_refused(public, changed):
    with pytest.raises(BadSignature, match="not signed by"):
        check_public(public, **changed)


@pytest.mark.parametrize("part", ["payload", "signature", "body", "promise", "root"])
def test_a_public_bundle_of_which_any_part_was_changed_is_refused(public, part):
    bundle = json.loads(public)
    entry = bundle["verificationMaterial"]["tlogEntries"][0]
    where, key = {
        "payload": (bundle["dsseEnvelope"], "payload"),
        "signature": (bundle["dsseEnvelope"]["signatures"][0], "sig"),
        "body": (entry, "canonicalizedBody"),
        "promise": (entry["inclusionPromise"], "signedEntryTimestamp"),
        "root": (entry["inclusionProof"], "rootHash"),
    }[part]
    data = bytearray(base64.b64decode(where[key]))
    data[len(data) // 2] ^= 1
    where[key] = base64.b64encode(data).decode()

    with pytest.raises(BadSignature, match="not signed by"):
        check_public(json.dumps(bundle).encode())


def test_a_keyless_signature_of_older_tools_is_said_to_be_one_and_counts_for_nothing():
    """cosign 1 and 2: annotations, with a promise of the log and no proof of inclusion."""
    target, config = MemoryTarget("r.test/a"), describe(b"{}", media_types.OCI_CONFIG)
    data = Manifest(config=config, layers=()).dump()
    subject = describe(data, media_types.OCI_MANIFEST)
    payload = b'{"critical":{}}'
    annotations = {SIGNATURE: "AAAA", "dev.sigstore.cosign/certificate": "-----BEGIN CERTIFICATE-----"}
    old = Manifest(config=config, layers=(describe(payload, SIMPLE_SIGNING, annotations=annotations),)).dump()
    for what, content in ((subject, data), (describe(payload, SIMPLE_SIGNING), payload)):
        target.push(what, partial(io.BytesIO, content))
    signatures = describe(old, media_types.OCI_MANIFEST)
    target.push(signatures, partial(io.BytesIO, old))
    target.tag(signatures, signature_tag(subject))

    with pytest.raises(NotSigned, match="no proof of inclusion"):
        verify(target, subject, {"alice": Identity(identity=WHO, issuer=ISSUER)})
