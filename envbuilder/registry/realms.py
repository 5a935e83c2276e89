"""Token servers: whether the one that a registry names may be asked, how near it may be, and what it gets.

Rules: registry.md 7.8 (CVE-2020-15157, CVE-2026-24845, CVE-2026-33540, CVE-2026-48978 and others are about this).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envbuilder.registry.addresses import Kind, Origin, is_loopback_name
from envbuilder.registry.errors import ForbiddenAddress
from envbuilder.registry.redact import redact_url
from envbuilder.registry.settings import HttpSettings

#: Token servers that stand on another site than their registry (registry.md 7.8).
_KNOWN_REALMS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}


@dataclass(frozen=True, slots=True)
class Realm:
    """``nearest``: how near the token server's address may be, None for anywhere. ``is_own``: it gets credentials."""

    nearest: Kind | None
    is_own: bool


def judge(realm: str, registry: Origin, host: str, settings: HttpSettings) -> Realm:
    """What ``realm``, a URL that ``registry`` names, may be asked; configuration files call the registry ``host``.

    Raises:
        ForbiddenAddress: the realm is no place to ask.
    """
    try:
        origin = Origin.of(realm)
    except ForbiddenAddress as error:
        raise ForbiddenAddress(f"{host}: token server: {error}") from error
    if origin.scheme == "http" and registry.scheme != "http":
        raise ForbiddenAddress(
            f"{host}: token server: want https, got {redact_url(realm)}",
            hint="Don't use this registry until its owner has mended its realm.",
        )
    if origin.host == registry.host or settings.trusts(origin):
        return Realm(None, True)
    nearest = Kind.LOOPBACK if is_loopback_name(registry.host) else Kind.GLOBAL
    return Realm(nearest, _KNOWN_REALMS.get(registry.host) == origin.host or same_site(registry.host, origin.host))


def same_site(one: str, other: str) -> bool:
    """Whether two host names surely belong to one owner: the same, one below the other, or siblings below a domain.

    Without the public suffix list, so it errs on the side of no.
    """
    if one == other:
        return True
    first, second = one.split("."), other.split(".")
    if not _is_domain(first) or not _is_domain(second):
        return False
    shorter, longer = sorted((first, second), key=len)
    if longer[-len(shorter) :] == shorter:
        return _is_owned(shorter)
    return len(first) == len(second) and first[1:] == second[1:] and _is_owned(first[1:])


def _is_domain(labels: Sequence[str]) -> bool:
    return len(labels) > 1 and not labels[-1].isdigit() and all(labels) and ":" not in labels[-1]


def _is_owned(labels: Sequence[str]) -> bool:
    """Whether a domain is somebody's, not a registry's own suffix (co.uk) or a host for strangers (azurecr.io)."""
    if len(labels) < 2 or any(".".join(labels[start:]) in _SHARED for start in range(len(labels))):
        return False  # what lies below such a domain (s3.amazonaws.com) may be for strangers, too
    return len(labels) > 2 or len(labels[-1]) > 2 or len(labels[0]) > 3


#: Domains whose sub-domains belong to different customers.
_SHARED = frozenset(
    {
        "azurecr.io",
        "amazonaws.com",
        "pkg.dev",
        "run.app",
        "github.io",
        "gitlab.io",
        "cloudfront.net",
        "core.windows.net",
        "appspot.com",
        "web.app",
        "workers.dev",
        "herokuapp.com",
        "ngrok.io",
        "netlify.app",
        "vercel.app",
    }
)
