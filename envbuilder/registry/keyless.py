"""Keyless signatures: a bundle is checked offline, by the ``sigstore`` extra, against one identity and one issuer.

Only this module imports sigstore, when it is used: its trust root is the one that the package brings along.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

from envbuilder.digest import Digest
from envbuilder.errors import HostError
from envbuilder.registry.cosign import BadSignature, check_statement


class NoSigstore(HostError):
    """A policy asks for keyless signatures and the ``sigstore`` extra is not installed."""

    hint = "Install envbuilder[sigstore]."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who must have signed: the certificate's exact subject (an address, a workflow's URL) and its OIDC issuer."""

    identity: str
    issuer: str

    def __str__(self) -> str:
        return f"{self.identity} ({self.issuer})"


class DsseVerifier(Protocol):
    """The part of sigstore's Verifier that we use."""

    def verify_dsse(self, bundle: Any, policy: Any) -> tuple[str, bytes]: ...


def verify_keyless(
    bundle: bytes, who: Identity, digest: Digest, *, source: str, verifier: DsseVerifier | None = None
) -> None:
    """Check that ``who`` signed ``bundle``, with certificate, timestamp and log entry, and that it is about ``digest``.

    Raises:
        BadSignature: not so. NoSigstore: it cannot be checked here.
    """
    try:
        from sigstore.errors import Error  # noqa: PLC0415  an extra
        from sigstore.models import Bundle, InvalidBundle  # noqa: PLC0415
        from sigstore.verify import policy  # noqa: PLC0415
    except ImportError as error:
        raise NoSigstore(f"{source}: keyless signatures need the sigstore package") from error
    try:
        parsed = Bundle.from_json(bundle)
        wanted = policy.Identity(identity=who.identity, issuer=who.issuer)
        kind, payload = (verifier or _verifier()).verify_dsse(parsed, wanted)
    except (Error, InvalidBundle, ValueError) as error:
        raise BadSignature(f"{source}: not signed by {who}: {str(error)[:300]}") from error
    check_statement(kind, payload, digest, source=source)


@functools.cache
def _verifier() -> DsseVerifier:
    from sigstore.verify import Verifier  # noqa: PLC0415  an extra

    return Verifier.production(offline=True)
