"""A sigstore of a test's own: an authority of short certificates, its log, and a log of signatures. No network.

What it signs is checked by the ``sigstore`` package against ``trust_root``, as signatures of the public service are.
Sources: RFC 6962, 3.2 (certificate timestamps); Fulcio's oid-info.md; Rekor's dsse 0.0.1; C2SP signed-note.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import struct
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from envbuilder.digest import Digest, canonical_json
from envbuilder.registry.cosign import BUNDLE, PREDICATE

_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_TIMESTAMPS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_LIFE = dt.timedelta(minutes=10)
_LOG = "log.test"


class Sigstore:
    """The three parties, with keys of their own; ``now``: the time that all of them see."""

    def __init__(self) -> None:
        self.now = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
        self._authority_key, self._certificates_key, self._log_key = (_new_key() for _ in range(3))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority.test")])
        self._authority = (
            _certificate(name, name, self._authority_key, self.now, dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._authority_key.public_key()), critical=False)
            .sign(self._authority_key, hashes.SHA256())
        )

    @property
    def trust_root(self) -> bytes:
        """What a verifier must know of it, as JSON (sigstore's trusted root v0.1)."""
        start = {"start": (self.now - dt.timedelta(days=1)).isoformat().replace("+00:00", "Z")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": _text(_public(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": start}
            named = {"keyId": _text(_key_id(key))}
            return {"baseUrl": f"https://{_LOG}", "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": named}

        authority = {
            "subject": {"organization": "test", "commonName": "authority.test"},
            "uri": "https://authority.test",
            "certChain": {"certificates": [{"rawBytes": _text(_der(self._authority))}]},
            "validFor": start,
        }
        return canonical_json(
            {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log(self._log_key)],
                "certificateAuthorities": [authority],
                "ctlogs": [log(self._certificates_key)],
                "timestampAuthorities": [],
            }
        )

    def sign(
        self,
        digest: Digest,
        identity: str,
        issuer: str,
        predicate: str = PREDICATE,
        late: dt.timedelta = dt.timedelta(),
    ) -> bytes:
        """The bundle v0.3 of a signature of the image ``digest`` by ``identity``, an address that ``issuer`` knows.

        late: how long after the certificate was made the signature came to the log.
        """
        key = _new_key()
        certificate = self._certify(key, identity, issuer)
        statement = canonical_json(
            {
                "_type": "https://in-toto.io/Statement/v1",
                "subject": [{"name": "", "digest": {"sha256": digest.hex}}],
                "predicateType": predicate,
                "predicate": {},
            }
        )
        kind = _PAYLOAD_TYPE.encode()
        signature = _sign(key, b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(statement), statement))
        signed = [{"sig": _text(signature)}]
        envelope = {"payload": _text(statement), "payloadType": _PAYLOAD_TYPE, "signatures": signed}
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(canonical_json(envelope)).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(statement).hexdigest()},
            "signatures": [{"signature": _text(signature), "verifier": _text(pem)}],
        }
        entry = self._log(canonical_json({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}), late)
        material = {"certificate": {"rawBytes": _text(_der(certificate))}, "tlogEntries": [entry]}
        return canonical_json({"mediaType": BUNDLE, "verificationMaterial": material, "dsseEnvelope": envelope})

    def _certify(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        made = (
            _certificate(x509.Name([]), self._authority.subject, key, self.now, _LIFE)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._authority_key.public_key()), critical=False
            )
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), critical=False)
        )
        # What the log promises about is the certificate without its promise.
        body = made.sign(self._authority_key, hashes.SHA256()).tbs_certificate_bytes
        at_ms = int(self.now.timestamp() * 1000)
        entry = _key_id(self._authority_key) + len(body).to_bytes(3, "big") + body
        promised = _sign(self._certificates_key, struct.pack("!BBQH", 0, 0, at_ms, 1) + entry + b"\0\0")
        # Version 1, no extensions; then the algorithms: SHA-256 with ECDSA.
        stamp = (
            b"\0" + _key_id(self._certificates_key) + struct.pack("!QHBBH", at_ms, 0, 4, 3, len(promised)) + promised
        )
        stamps = struct.pack("!HH", len(stamp) + 2, len(stamp)) + stamp
        octets = (
            b"\x04" + (bytes([len(stamps)]) if len(stamps) < 128 else b"\x81" + bytes([len(stamps)])) + stamps
        )  # DER
        made = made.add_extension(x509.UnrecognizedExtension(_TIMESTAMPS, octets), critical=False)
        return made.sign(self._authority_key, hashes.SHA256())

    def _log(self, body: bytes, late: dt.timedelta) -> dict[str, Any]:
        """The entry of ``body`` in a log that has nothing else."""
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{_LOG} - 1\n1\n{_text(root)}\n"
        mark = _text(_key_id(self._log_key)[:4] + _sign(self._log_key, note.encode()))
        at_s = int((self.now + late).timestamp())
        promise = canonical_json(
            {"body": _text(body), "integratedTime": at_s, "logID": _key_id(self._log_key).hex(), "logIndex": 0}
        )
        return {
            "logIndex": "0",
            "logId": {"keyId": _text(_key_id(self._log_key))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(at_s),
            "inclusionPromise": {"signedEntryTimestamp": _text(_sign(self._log_key, promise))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _text(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\u2014 {_LOG} {mark}\n"},
            },
            "canonicalizedBody": _text(body),
        }


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime, life: dt.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(seconds=1))
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_public(key)).digest()


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
