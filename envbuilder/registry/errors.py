"""What a registry's refusal means to the caller: OCI error codes and HTTP status to our families.

Source: OCI distribution-spec 1.1, "Error Codes".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from envbuilder.errors import EnvbuilderError, HostError, IntegrityError, RefusedError, UnavailableError
from envbuilder.registry.redact import plain, without
from envbuilder.store.target import NotFound

#: Bytes of an error body that are read; it may be anything, an endless HTML page too (registry.md 8.2).
MAX_ERROR_SIZE = 1 << 20
_MAX_TEXT = 400
#: Server errors that will be the same tomorrow: not implemented, another HTTP, no room left, a captive portal.
_FOR_GOOD = frozenset({501, 505, 507, 511})


class RegistryDown(UnavailableError):
    """A registry did not answer, broke off, or answered with a server error, several times.

    Fields: ``status``, 0 where it did not answer; ``retry_after_s``, 0 where it did not say.
    """

    status = 0
    retry_after_s = 0.0


class RateLimited(UnavailableError):
    """A registry asked for more patience than this call has. Field: ``retry_after_s``."""

    retry_after_s = 0.0


class Unauthorized(HostError):
    """A registry does not know who we are: no credentials, or wrong or expired ones."""


class Denied(HostError):
    """A registry knows who we are and does not let us do this."""


class Rejected(RefusedError):
    """A registry refuses what it was sent; the same request will be refused again. Fields: ``status``, ``codes``."""

    status = 0
    codes: tuple[str, ...] = ()


class BadAnswer(IntegrityError):
    """An answer breaks the protocol in a way that must not be guessed around."""


class ForbiddenAddress(IntegrityError):
    """A registry pointed us to a URL or address where its word must not lead (SSRF, credential theft)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a registry said in an error body: its codes and one line of text."""

    codes: tuple[str, ...]
    text: str


def parse_refusal(body: bytes, secrets: Sequence[str] = ()) -> Refusal:
    """The OCI error in ``body``, or the start of whatever else it is; never fails."""
    try:
        value = json.loads(body)
        errors = [item for item in value["errors"] if isinstance(item, dict)][:10]
        codes = tuple(plain(without(str(item.get("code", "")), secrets), 60) for item in errors)
        texts = [f"{item.get('code', '')}: {item.get('message', '')}" for item in errors]
        text = "; ".join(texts)
    except (ValueError, KeyError, TypeError, RecursionError):
        codes, text = (), body.decode("utf-8", "replace")  # a secret that was cut in two would not be found
    return Refusal(codes, plain(without(text, secrets), _MAX_TEXT))


def refusal_error(where: str, status: int, refusal: Refusal, retry_after_s: float = 0.0) -> EnvbuilderError:
    """The error for an answer of ``status`` that was not wanted; ``where`` has the verb and the redacted URL."""
    text = f"{where}: {status}" + (f" {refusal.text}" if refusal.text else "")
    if status == 429 or "TOOMANYREQUESTS" in refusal.codes:
        limited = RateLimited(text, hint="Wait, log in, or use a mirror.")
        limited.retry_after_s = retry_after_s
        return limited
    if status == 407:
        return Unauthorized(text, hint="Put the right user and password into http_proxy or https_proxy.")
    if status == 401 or "UNAUTHORIZED" in refusal.codes:
        return Unauthorized(
            text, hint="Log in with the right name and password: envbuilder login HOST --username NAME."
        )
    if status == 403 or "DENIED" in refusal.codes:
        return Denied(text, hint="Ask for the right to this repository, or log in as someone who has it.")
    if status == 404:
        return NotFound(text, hint="Check the name and the tag.")
    if (status >= 500 and status not in _FOR_GOOD) or status in (408, 499):  # 499: of a proxy before it
        down = RegistryDown(text, hint="Try again later; if it stays, ask who runs the registry.")
        down.status, down.retry_after_s = status, retry_after_s
        return down
    rejected = Rejected(text, hint=_hint(status, refusal))
    rejected.status, rejected.codes = status, refusal.codes
    return rejected


def _hint(status: int, refusal: Refusal) -> str:
    if "immutable" in refusal.text.lower():
        return "Push it under another tag: this one does not move there."
    if status == 405 or "UNSUPPORTED" in refusal.codes:
        return "Use a registry that accepts this; pull-through caches refuse pushes."
    if status == 413 or "SIZE_INVALID" in refusal.codes:
        return "Raise the size limit of the registry, or of the proxy before it."
    if status == 507 or "quota" in refusal.text.lower():
        return "Make room there (envbuilder gc), or ask who runs the registry for more."
    return "Read what the registry said; the same request will be refused again."
