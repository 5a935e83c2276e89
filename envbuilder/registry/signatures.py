"""Signatures of images: made, found and checked beside them, on any target.

Two forms of keyed cosign signatures: simple signing under the tag ``sha256-HEX.sig``, and a sigstore bundle
as a referrer. What they sign must be the digest that the caller pinned (registry.md 8.3; kyverno#16213).
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

from envbuilder.digest import Descriptor, canonical_json, describe
from envbuilder.errors import IntegrityError, UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.registry.cosign import (
    BUNDLE,
    MAX_BUNDLE,
    MAX_PAYLOAD,
    PREDICATE,
    SIGNATURE,
    SIMPLE_SIGNING,
    BadSignature,
    PrivateKey,
    PublicKey,
    SimpleSignature,
    decoded,
    sign_bundle,
    sign_simple,
    verify_bundle,
    verify_simple,
)
from envbuilder.registry.keyless import Identity, NoSigstore, verify_keyless
from envbuilder.store.referrers import attach, read_referrer, referrers, swap_tag, tag_state
from envbuilder.store.target import NotFound, Target
from envbuilder.store.whole import fetch_whole

_log = logging.getLogger("envbuilder.registry")
#: Signatures looked at per image: each costs a request and a public-key operation.
MAX_SIGNATURES = 100
_ATTEMPTS = 5
#: cosign's specs/SIGNATURE_SPEC.md.
_CERTIFICATE = "dev.sigstore.cosign/certificate"

Form: TypeAlias = Literal["bundle", "simple"]
Signer: TypeAlias = PublicKey | Identity


class NotSigned(IntegrityError):
    """No signature beside an image is one that was asked for."""


class SignatureContended(UnavailableError):
    """Others kept changing the signatures of an image while we added one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSignature:
    """A signature as it is stored: not trusted yet. ``content``: a bundle, or a simple signature.

    certified: a simple signature that comes with a certificate: keyless, by cosign 1 or 2.
    """

    form: Form
    where: str
    content: bytes | SimpleSignature
    certified: bool = False


def signature_tag(subject: Descriptor) -> str:
    """Where cosign keeps the simple signatures of an image."""
    return f"sha256-{subject.digest.hex}.sig"


def find_signatures(source: Target, subject: Descriptor) -> Iterator[FoundSignature]:
    """Every signature beside ``subject``, bundles first; those that cannot be read are logged and left out.

    Raises:
        UnavailableError, ...: the source does not answer: that is not "unsigned".
    """
    for what in referrers(source, subject, BUNDLE)[:MAX_SIGNATURES]:
        where = f"{source.name}: {what.digest}"
        try:
            (layer,) = read_referrer(source, what, subject).layers
            yield FoundSignature(form="bundle", where=where, content=_read(source, layer, MAX_BUNDLE))
        except (IntegrityError, NotFound, ValueError) as error:
            _log.warning("%s: not a signature: %s", where, error)
    state = tag_state(source, signature_tag(subject))
    if state is None:
        return
    document = parse_document(state.data, source=f"{source.name}: {signature_tag(subject)}")
    for layer in document.layers[:MAX_SIGNATURES] if isinstance(document, Manifest) else ():
        where = f"{source.name}: {layer.digest}"
        if layer.media_type != SIMPLE_SIGNING or SIGNATURE not in layer.annotations:
            continue
        try:
            payload = _read(source, layer, MAX_PAYLOAD)
            signed = SimpleSignature(payload=payload, signature=decoded(layer.annotations[SIGNATURE], where))
            certified = _CERTIFICATE in layer.annotations
            yield FoundSignature(form="simple", where=where, content=signed, certified=certified)
        except (IntegrityError, NotFound) as error:
            _log.warning("%s: not a signature: %s", where, error)


def check(signature: FoundSignature, signer: Signer, subject: Descriptor) -> None:
    """Check that ``signer`` signed ``subject``.

    Raises:
        BadSignature: not so. NoSigstore: an identity cannot be checked on this machine.
    """
    content = signature.content
    if isinstance(content, SimpleSignature):
        if isinstance(signer, Identity) and signature.certified:
            raise BadSignature(
                f"{signature.where}: a keyless signature of cosign 1 or 2: its log entry has no proof of inclusion"
            )
        if isinstance(signer, Identity):
            raise BadSignature(f"{signature.where}: a signature by a key, not by {signer}")
        verify_simple(signer, content, subject.digest, source=signature.where)
    elif isinstance(signer, Identity):
        verify_keyless(content, signer, subject.digest, source=signature.where)
    else:
        verify_bundle(signer, content, subject.digest, source=signature.where)


def verify(source: Target, subject: Descriptor, signers: Mapping[str, Signer]) -> tuple[str, FoundSignature]:
    """The name of the first of ``signers`` who signed ``subject``, and the signature.

    Raises:
        NotSigned: none of them did; why not, for each signature that is there. NoSigstore: nor can all be checked here.
    """
    refused = []
    missing: NoSigstore | None = None
    for signature in find_signatures(source, subject):
        for name, signer in signers.items():
            try:
                why_not = _refusal(signature, signer, subject)
            except NoSigstore as error:  # another signer may suffice
                missing = error
                continue
            if not why_not:
                return name, signature
            refused.append(why_not)
    if missing:
        raise missing
    there = "; ".join(refused[:5]) or "there is no signature at all"
    raise NotSigned(
        f"{source.name}: {subject.digest}: want a signature by {' or '.join(signers) or 'someone'}: {there}",
        hint="Sign it (envbuilder sign), or ask who builds it.",
    )


def sign(target: Target, subject: Descriptor, key: PrivateKey, name: str, form: Form = "bundle") -> Descriptor | None:
    """Sign ``subject`` and store the signature beside it; None when this key's signature is there already.

    name: how the image is called (``host/repository``), for simple signing.

    Raises:
        NotFound: ``target`` has no ``subject``. SignatureContended: others kept changing the tag.
    """
    if not target.has(subject):
        raise NotFound(f"{target.name}: no {subject.digest} to sign", hint="Push the image first.")
    for there in find_signatures(target, subject):
        if there.form == form and not _refusal(there, key.public_key(), subject):
            return None
    if form == "simple":
        return _add_simple(target, subject, sign_simple(key, subject.digest, name))
    bundle = sign_bundle(key, subject.digest)
    blob = (describe(bundle, BUNDLE), partial(io.BytesIO, bundle))
    annotations = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": PREDICATE}
    return attach(target, subject, BUNDLE, [blob], annotations)


def _refusal(signature: FoundSignature, signer: Signer, subject: Descriptor) -> str:
    """Why ``signature`` is not one of ``subject`` by ``signer``, or ""."""
    try:
        check(signature, signer, subject)
    except BadSignature as error:
        return str(error)
    return ""


def _add_simple(target: Target, subject: Descriptor, signed: SimpleSignature) -> Descriptor:
    text = base64.b64encode(signed.signature).decode()
    layer = describe(signed.payload, SIMPLE_SIGNING, annotations={SIGNATURE: text})
    target.push(replace(layer, annotations={}), partial(io.BytesIO, signed.payload))
    tag = signature_tag(subject)
    for _ in range(_ATTEMPTS):
        state = tag_state(target, tag)
        there = parse_document(state.data, source=f"{target.name}: {tag}") if state else None
        layers = there.layers if isinstance(there, Manifest) else ()
        if layer in layers and state is not None:
            return state.what
        config = signature_config((*layers, layer))
        what_config = describe(config, media_types.OCI_CONFIG)
        target.push(what_config, partial(io.BytesIO, config))
        data = Manifest(config=what_config, layers=(*layers, layer)).dump()
        what = describe(data, media_types.OCI_MANIFEST)
        if swap_tag(target, tag, what, data, state) == "done":
            return what
    raise SignatureContended(f"{target.name}: {tag}: changed {_ATTEMPTS} times by others", hint="Sign it again.")


def signature_config(layers: tuple[Descriptor, ...]) -> bytes:
    """The config that cosign gives its signatures: an image's, of no platform."""
    rootfs = {"type": "layers", "diff_ids": [str(layer.digest) for layer in layers]}
    return canonical_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})


def _read(source: Target, what: Descriptor, most: int) -> bytes:
    return fetch_whole(source, what, most, BadSignature)
