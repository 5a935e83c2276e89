"""Keys and signed statements in cosign's forms: simple signing, and sigstore bundles with a DSSE envelope. No I/O.

Sources: sigstore/cosign specs/SIGNATURE_SPEC.md, secure-systems-lab/dsse protocol.md,
sigstore/protobuf-specs sigstore_bundle.proto (v0.3), in-toto/attestation statement v1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from envbuilder.digest import Digest, InvalidJson, canonical_json, parse_json_object
from envbuilder.errors import IntegrityError, SpecError
from envbuilder.registry.secretbox import KEY_SIZE, open_box

PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PREDICATE = "https://sigstore.dev/cosign/sign/v1"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = re.compile(r"https://in-toto\.io/Statement/v(?:0\.1|1)\Z")
_TYPE = "cosign container image signature"
#: Bytes of a key file, of a payload, of a bundle.
MAX_KEY, MAX_PAYLOAD, MAX_BUNDLE = 64 << 10, 1 << 20, 4 << 20
_ENCRYPTED = re.compile(
    rb"-----BEGIN ENCRYPTED (?:COSIGN|SIGSTORE) PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+?)\s*-----END ENCRYPTED"
)
#: scrypt's cost as cosign asks for it is 2**15 or 2**16; memory is 128 * N * r bytes.
_MAX_N, _R, _P = 1 << 17, 8, 1
_SCRYPT_MEMORY = 256 << 20


class BadKey(SpecError):
    """A file is no key that we can use: ECDSA P-256 or ed25519, PEM, or an encrypted key of cosign."""

    hint = "Make one: cosign generate-key-pair, or openssl genpkey -algorithm ed25519."


class BadSignature(IntegrityError):
    """A signature, or what it signs, is malformed, of another image, or not by the key that it should be by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSignature:
    """A payload and its signature, as a layer and its annotation hold them."""

    payload: bytes
    signature: bytes


def load_private_key(data: bytes, password: bytes | None = None, *, source: str) -> PrivateKey:
    """The private key in a PEM file: PKCS8, SEC1, or cosign's own encrypted form.

    Raises:
        BadKey: none of these, another kind of key, or the wrong password.
    """
    encrypted = _ENCRYPTED.search(data[:MAX_KEY])
    try:
        if encrypted:
            key = serialization.load_der_private_key(_decrypted(encrypted[1], password or b"", source), None)
        else:
            key = serialization.load_pem_private_key(data, password)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        got = (
            "a public key"
            if b"-----BEGIN PUBLIC KEY-----" in data[:MAX_KEY]
            else f"none that opens: {type(error).__name__}"
        )
        raise BadKey(f"{source}: want a private key, got {got}") from error
    if isinstance(key, ed25519.Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise BadKey(f"{source}: want an ECDSA P-256 or ed25519 key, got {type(key).__name__}")


def load_public_key(data: bytes, *, source: str) -> PublicKey:
    """The public key in a PEM file.

    Raises:
        BadKey: there is none, or of another kind.
    """
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey(f"{source}: no public key in PEM") from error
    if isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise BadKey(f"{source}: want an ECDSA P-256 or ed25519 key, got {type(key).__name__}")


def key_id(key: PublicKey) -> str:
    """sha256 of the key in DER, base64: how bundles hint at it, and how we name a signer."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


def sign_simple(key: PrivateKey, digest: Digest, name: str) -> SimpleSignature:
    """A simple signature of the image ``digest`` that is called ``name`` (``host/repository``)."""
    critical = {
        "identity": {"docker-reference": name},
        "image": {"docker-manifest-digest": str(digest)},
        "type": _TYPE,
    }
    payload = canonical_json({"critical": critical, "optional": None})
    return SimpleSignature(payload=payload, signature=_sign(key, payload))


def verify_simple(key: PublicKey, signed: SimpleSignature, digest: Digest, *, source: str) -> None:
    """Check the signature first, then that it is about ``digest``.

    Raises:
        BadSignature: it is not.
    """
    _verify(key, signed.signature, signed.payload, source)
    try:
        critical = parse_json_object(signed.payload, source=source)["critical"]
        kind, got = critical["type"], critical["image"]["docker-manifest-digest"]
    except (InvalidJson, KeyError, TypeError) as error:
        raise BadSignature(f"{source}: payload: not one of simple signing") from error
    if kind != _TYPE or got != str(digest):
        raise BadSignature(f"{source}: want a signature of {digest}, got one of {str(got)[:100]!r}")


def sign_bundle(key: PrivateKey, digest: Digest) -> bytes:
    """A sigstore bundle v0.3 with a keyed signature of the image ``digest``."""
    statement = canonical_json(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "", "digest": {"sha256": digest.hex}}],
            "predicateType": PREDICATE,
            "predicate": {},
        }
    )
    signature = _sign(key, _to_be_signed(_PAYLOAD, statement))
    return canonical_json(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": key_id(key.public_key())}},
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode(),
                "payloadType": _PAYLOAD,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
    )


def verify_bundle(key: PublicKey, bundle: bytes, digest: Digest, *, source: str) -> None:
    """Check that a bundle is signed by ``key`` and about ``digest``.

    Raises:
        BadSignature: it is not.
    """
    try:
        envelope = parse_json_object(bundle, source=source)["dsseEnvelope"]
        payload, kind = decoded(envelope["payload"], source), envelope["payloadType"]
        (signature,) = envelope["signatures"]
        sealed = decoded(signature["sig"], source)
        signed = _to_be_signed(kind, payload)
    except (InvalidJson, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadSignature(f"{source}: not a bundle with one DSSE signature") from error
    _verify(key, sealed, signed, source)
    check_statement(kind, payload, digest, source=source)


def check_statement(kind: str, payload: bytes, digest: Digest, *, source: str) -> None:
    """Check that a signed in-toto statement is cosign's word about the image ``digest``.

    Raises:
        BadSignature: it is another statement, or about another image.
    """
    try:
        statement = parse_json_object(payload, source=source)
        subjects = {subject["digest"]["sha256"] for subject in statement["subject"]}
    except (InvalidJson, KeyError, TypeError) as error:
        raise BadSignature(f"{source}: not an in-toto statement") from error
    if kind != _PAYLOAD or not _STATEMENT.match(str(statement.get("_type"))):
        raise BadSignature(f"{source}: want an in-toto statement, got {kind[:100]!r}")
    if statement.get("predicateType") != PREDICATE:
        got = str(statement.get("predicateType"))[:100]
        raise BadSignature(f"{source}: want a signature ({PREDICATE}), got {got!r}")
    # One statement, one image: a list of others beside ours would be nothing that a person meant to sign here.
    if subjects != {digest.hex}:
        raise BadSignature(f"{source}: want a signature of {digest}, got one of {', '.join(map(str, subjects))[:200]}")


def decoded(text: object, source: str) -> bytes:
    """Strict base64.

    Raises:
        BadSignature: it is none.
    """
    try:
        return base64.b64decode(text if isinstance(text, str) else b"!", validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSignature(f"{source}: not base64") from error


def _sign(key: PrivateKey, data: bytes) -> bytes:
    return key.sign(data) if isinstance(key, ed25519.Ed25519PrivateKey) else key.sign(data, ec.ECDSA(hashes.SHA256()))


def _verify(key: PublicKey, signature: bytes, data: bytes, source: str) -> None:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, data)
        else:
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise BadSignature(f"{source}: not signed by the key {key_id(key)}") from error


def _to_be_signed(kind: str, payload: bytes) -> bytes:
    """The pre-authentication encoding of DSSE v1."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def _decrypted(text: bytes, password: bytes, source: str) -> bytes:
    try:
        box = parse_json_object(base64.b64decode(text), source=source)
        kdf, cipher = box["kdf"], box["cipher"]
        params = kdf["params"]
        if (kdf["name"], cipher["name"], params["r"], params["p"]) != ("scrypt", "nacl/secretbox", _R, _P):
            raise BadKey(f"{source}: encrypted in another way than cosign's")
        cost = params["N"]
        if not isinstance(cost, int) or not 1 < cost <= _MAX_N or cost & (cost - 1):
            raise BadKey(f"{source}: want a scrypt cost that is a power of two up to {_MAX_N}")
        salt, nonce = decoded(kdf["salt"], source), decoded(cipher["nonce"], source)
        sealed = decoded(box["ciphertext"], source)
    except (InvalidJson, BadSignature, KeyError, TypeError, ValueError) as error:
        raise BadKey(f"{source}: not an encrypted key of cosign") from error
    key = hashlib.scrypt(password, salt=salt, n=cost, r=_R, p=_P, maxmem=_SCRYPT_MEMORY, dklen=KEY_SIZE)
    opened = open_box(sealed, nonce, key)
    if opened is None:
        raise BadKey(f"{source}: the password is wrong", hint="Set COSIGN_PASSWORD to the key's password.")
    return opened
