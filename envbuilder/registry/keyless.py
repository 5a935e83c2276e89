"""Keyless signatures: a bundle is checked offline, by the ``sigstore`` extra, against one identity and one issuer.

Only this module imports sigstore, when it is used. Its trust root is the one that the package brings along, or a file.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from envbuilder.digest import Digest
from envbuilder.errors import HostError
from envbuilder.registry.cosign import BadSignature, check_statement


class NoSigstore(HostError):
    """A policy asks for keyless signatures and the ``sigstore`` extra is not installed."""

    hint = "Install envbuilder[sigstore]."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who must have signed: the certificate's exact subject (an address, a workflow's URL) and its OIDC issuer.

    trust_root: the file (trusted_root.json) with the authorities and logs that count; None: sigstore's public ones.
    """

    identity: str
    issuer: str
    trust_root: Path | None = None

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
        kind, payload = (verifier or _verifier(who.trust_root)).verify_dsse(parsed, wanted)
    except (Error, InvalidBundle, ValueError, OSError) as error:
        raise BadSignature(f"{source}: not signed by {who}: {str(error)[:300]}") from error
    check_statement(kind, payload, digest, source=source)


@functools.cache
def _verifier(trust_root: Path | None) -> DsseVerifier:
    from sigstore.models import TrustedRoot  # noqa: PLC0415  an extra
    from sigstore.verify import Verifier  # noqa: PLC0415

    if trust_root is not None:
        return Verifier(trusted_root=TrustedRoot.from_file(str(trust_root)))
    return Verifier.production(offline=True)
