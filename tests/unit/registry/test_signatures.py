import base64
import contextlib
import io
import json
from dataclasses import replace
from functools import partial

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from envbuilder.digest import Digest, describe
from envbuilder.errors import SpecError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.cosign import (
    BUNDLE,
    PREDICATE,
    SIMPLE_SIGNING,
    BadKey,
    BadSignature,
    check_statement,
    load_private_key,
    load_public_key,
    sign_bundle,
    sign_simple,
    verify_bundle,
    verify_simple,
)
from envbuilder.registry.secretbox import open_box
from envbuilder.registry.signatures import NotSigned, find_signatures, sign, signature_tag, verify
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach, referrers
from envbuilder.store.target import NotFound

_ONE, _TWO = Digest.of(b"one"), Digest.of(b"two")
#: Made by cosign 2.4.3 (generate-key-pair), password "pw".
_COSIGN_KEY = b"""-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----
eyJrZGYiOnsibmFtZSI6InNjcnlwdCIsInBhcmFtcyI6eyJOIjo2NTUzNiwiciI6
OCwicCI6MX0sInNhbHQiOiJUT21EdmVWOS9TdXpWbzJra0JoWDM4NmZPZFNZck94
cWlQQ1pPVEw2cmZFPSJ9LCJjaXBoZXIiOnsibmFtZSI6Im5hY2wvc2VjcmV0Ym94
Iiwibm9uY2UiOiJETW5tcW9zS2dkN3lzRGtsMGZ1Tkh3d01Ta1JnVHdJZCJ9LCJj
aXBoZXJ0ZXh0IjoidUFZaGFwU3lRVW5RWFJCcnVKeG9jTTlHNE9qR3FDNUZ3OHgr
VVh5d3lId0ZCMDRaWDhneHE5akpRNGtGUHFqRi96SldvcEJRSEl5RVByUjlOQUov
REVMRk51L0ZZWjFtMnUvVUlMUGtQU3dQOXA1MWl5aDRjQzNKRXNBejg2NFVZbkhN
QlJmbXRLZnFSSDRDd3NBeHJHVS9kbE43T3dsdGtZUzhBNndmZXpEdllteW5ETTRN
YjBqaGYrMC95OSt6ajRCR0hSdGRQMWV1cUE9PSJ9
-----END ENCRYPTED SIGSTORE PRIVATE KEY-----
"""
_COSIGN_PUBLIC = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEj8pT81F2sfKo0i7NUn5fGwePUDz8
vIH/mTL3fWGgL+5AJmsq/NXvyAc2VqAzUBaf3jpRNdxVAhOV5xO0Lx/5cA==
-----END PUBLIC KEY-----
"""


@pytest.fixture(params=["P-256", "ed25519"])
def key(request):
    return ec.generate_private_key(ec.SECP256R1()) if request.param == "P-256" else ed25519.Ed25519PrivateKey.generate()


@pytest.fixture(params=["memory", "layout"])
def target(request, tmp_path):
    return MemoryTarget() if request.param == "memory" else LayoutTarget(tmp_path / "layout", create=True)


def image(target, text=b"{}"):
    config = describe(text, media_types.OCI_CONFIG)
    target.push(config, partial(io.BytesIO, text))
    data = Manifest(config=config, layers=()).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    return what


def pem(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def test_a_signature_is_of_one_image_by_one_key(key):
    other = ed25519.Ed25519PrivateKey.generate()
    signed, bundle = sign_simple(key, _ONE, "a.test/b"), sign_bundle(key, _ONE)

    verify_simple(key.public_key(), signed, _ONE, source="s")
    verify_bundle(key.public_key(), bundle, _ONE, source="s")
    for who, what in ((key, _TWO), (other, _ONE)):
        with pytest.raises(BadSignature):
            verify_simple(who.public_key(), signed, what, source="s")
        with pytest.raises(BadSignature):
            verify_bundle(who.public_key(), bundle, what, source="s")


@pytest.mark.parametrize("form", ["bundle", "simple"])
def test_what_was_signed_is_found_and_verified(target, key, form):
    subject = image(target)
    target.tag(subject, "v1")

    assert sign(target, subject, key, "a.test/b", form)
    name, found = verify(
        target, subject, {"other": ed25519.Ed25519PrivateKey.generate().public_key(), "us": key.public_key()}
    )

    assert (name, found.form) == ("us", form)
    assert target.lookup("v1") == subject


@pytest.mark.parametrize("form", ["bundle", "simple"])
def test_signing_again_adds_nothing(target, key, form):
    subject = image(target)

    assert sign(target, subject, key, "a.test/b", form) is not None
    assert sign(target, subject, key, "a.test/b", form) is None
    assert len(list(find_signatures(target, subject))) == 1


@pytest.mark.parametrize("form", ["bundle", "simple"])
def test_several_may_sign_one_image(target, form):
    subject = image(target)
    keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(3)]
    for key in keys:
        sign(target, subject, key, "a.test/b", form)

    for key in keys:
        assert verify(target, subject, {"who": key.public_key()})


def test_an_unsigned_image_is_refused(target, key):
    subject = image(target)

    with pytest.raises(NotSigned, match="no signature at all"):
        verify(target, subject, {"us": key.public_key()})
    with pytest.raises(NotFound):
        sign(target, describe(b"x", media_types.OCI_MANIFEST), key, "a.test/b")


def test_a_signature_of_another_image_does_not_count_here(target, key):
    """Whoever may push may also copy signatures: the digest inside is what counts."""
    signed, other = image(target), image(target, b'{"x":1}')
    sign(target, signed, key, "a.test/b", "simple")
    bundle = sign_bundle(key, signed.digest)
    attach(target, other, BUNDLE, [(describe(bundle, BUNDLE), partial(io.BytesIO, bundle))])
    target.tag(target.lookup(signature_tag(signed)), signature_tag(other))

    assert len(list(find_signatures(target, other))) == 2
    with pytest.raises(NotSigned, match="want a signature of"):
        verify(target, other, {"us": key.public_key()})


def test_garbage_beside_an_image_hides_no_good_signature(target, key):
    subject = image(target)
    for text in (
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"dsseEnvelope":{"payload":1,"payloadType":2,"signatures":[{"sig":3}]}}',
    ):
        attach(target, subject, BUNDLE, [(describe(text, BUNDLE), partial(io.BytesIO, text))])
    attach(target, subject, BUNDLE)
    garbage = describe(b"zz", SIMPLE_SIGNING, annotations={"dev.cosignproject.cosign/signature": "%%"})
    target.push(replace(garbage, annotations={}), partial(io.BytesIO, b"zz"))
    data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=(garbage,)).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    target.tag(what, signature_tag(subject))
    sign(target, subject, key, "a.test/b", "simple")

    assert verify(target, subject, {"us": key.public_key()})
    assert len(referrers(target, subject)) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b | {"dsseEnvelope": b["dsseEnvelope"] | {"signatures": b["dsseEnvelope"]["signatures"] * 2}},
        lambda b: b | {"dsseEnvelope": b["dsseEnvelope"] | {"signatures": []}},
        lambda b: b | {"dsseEnvelope": b["dsseEnvelope"] | {"payloadType": "text/plain"}},
        lambda b: b | {"dsseEnvelope": b["dsseEnvelope"] | {"payload": base64.b64encode(b"{}").decode()}},
        lambda b: {key: value for key, value in b.items() if key != "dsseEnvelope"},
    ],
)
def test_a_bundle_that_was_changed_is_refused(key, change):
    bundle = json.dumps(change(json.loads(sign_bundle(key, _ONE)))).encode()

    with pytest.raises(BadSignature):
        verify_bundle(key.public_key(), bundle, _ONE, source="s")


def test_a_signed_statement_of_another_kind_is_no_signature(key, monkeypatch):
    """An SBOM attestation by the same key says what is in an image, not that it may run."""
    monkeypatch.setattr("envbuilder.registry.cosign.PREDICATE", "https://spdx.dev/Document")
    bundle = sign_bundle(key, _ONE)
    monkeypatch.undo()

    with pytest.raises(BadSignature, match="spdx"):
        verify_bundle(key.public_key(), bundle, _ONE, source="s")


@pytest.mark.parametrize("others", [[], ["0" * 64], [Digest.of(b"other").hex, 5]])
def test_a_statement_about_several_images_is_no_signature_of_one(others):
    subjects = [{"digest": {"sha256": each}} for each in (*others, Digest.of(b"image").hex)]
    kind = "application/vnd.in-toto+json"
    statement = {"_type": "https://in-toto.io/Statement/v1", "predicateType": PREDICATE, "subject": subjects}

    with pytest.raises(BadSignature) if others else contextlib.nullcontext():
        check_statement(kind, json.dumps(statement).encode(), Digest.of(b"image"), source="s")


def test_keys_are_read_as_people_keep_them(key):
    for kind in (serialization.PrivateFormat.PKCS8,):
        plain = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
        locked = key.private_bytes(serialization.Encoding.PEM, kind, serialization.BestAvailableEncryption(b"pw"))
        assert pem(load_private_key(plain, source="k")) == pem(key)
        assert pem(load_private_key(locked, b"pw", source="k")) == pem(key)
        for password in (None, b"no"):
            with pytest.raises(BadKey):
                load_private_key(locked, password, source="k")
    assert load_public_key(pem(key), source="k") == key.public_key()


@pytest.mark.slow
def test_an_encrypted_key_of_cosign_is_opened_with_its_password():
    key = load_private_key(_COSIGN_KEY, b"pw", source="cosign.key")

    assert key.public_key() == load_public_key(_COSIGN_PUBLIC, source="cosign.pub")
    with pytest.raises(BadKey, match="password"):
        load_private_key(_COSIGN_KEY, b"no", source="cosign.key")


@pytest.mark.parametrize("change", [{"N": 1 << 30}, {"N": 3}, {"N": "x"}, {"r": 1 << 20}, {}])
def test_an_encrypted_key_that_asks_for_too_much_is_refused(change):
    head, text, tail = (
        _COSIGN_KEY.partition(b"-----\n")[0],
        b"".join(_COSIGN_KEY.splitlines()[1:-1]),
        _COSIGN_KEY.splitlines()[-1],
    )
    box = json.loads(base64.b64decode(text))
    box["kdf"]["params"] |= change
    if not change:
        del box["cipher"]
    hostile = b"\n".join([head + b"-----", base64.b64encode(json.dumps(box).encode()), tail, b""])

    with pytest.raises(BadKey):
        load_private_key(hostile, b"pw", source="k")


def test_keys_of_other_kinds_are_refused():
    other = rsa.generate_private_key(65537, 2048)
    text = other.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for read, data in ((load_private_key, text), (load_public_key, pem(other)), (load_public_key, b"x")):
        with pytest.raises(SpecError):
            read(data, source="k")


def test_the_box_of_nacls_own_test_vector_is_opened():
    """Cryptography in NaCl, section 10: the example of crypto_secretbox."""
    key = bytes.fromhex("1b27556473e985d462cd51197a9a46c76009549eac6474f206c4ee0844f68389")
    nonce = bytes.fromhex("69696ee955b62b73cd62bda875fc73d68219e0036b7a0b37")
    box = bytes.fromhex(
        "f3ffc7703f9400e52a7dfb4b3d3305d98e993b9f48681273c29650ba32fc76ce48332ea7164d96a4476fb8c531a1186a"
        "c0dfc17c98dce87b4da7f011ec48c97271d2c20f9b928fe2270d6fb863d51738b48eeee314a7cc8ab932164548e526ae"
        "90224368517acfeabd6bb3732bc0e9da99832b61ca01b6de56244a9e88d5f9b37973f622a43d14a6599b1f654cb45a74e355a5"
    )
    opened = open_box(box, nonce, key)

    assert opened is not None
    assert opened[:16].hex() == "be075fc53c81f2d5cf141316ebeb0c7b"
    assert len(opened) == 131
    assert open_box(box[:-1] + b"\0", nonce, key) is None
    assert open_box(b"", nonce, key) is None


def test_a_public_key_where_a_private_one_belongs_is_told():
    text = b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"

    with pytest.raises(BadKey, match=r"k\.pub: want a private key, got a public key"):
        load_private_key(text, source="k.pub")
