"""Authorization for one registry: which header to send, and what to do about a 401.

Rules: registry.md 7. A token is cached under its scopes, refreshed at 80 % of its life or
when a request is refused, and fetched once however many threads want it. The registry names
the token server (realm); that word is checked before anything is sent there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.errors import UnavailableError
from envbuilder.registry.addresses import Kind, Origin, is_loopback_name
from envbuilder.registry.answer import Answer
from envbuilder.registry.challenge import Challenge, parse_challenges
from envbuilder.registry.credentials import Credential, CredentialSource
from envbuilder.registry.errors import (
    BadAnswer,
    Denied,
    ForbiddenAddress,
    Unauthorized,
    parse_refusal,
    refusal_error,
)
from envbuilder.registry.redact import redact_url
from envbuilder.registry.retry import parse_retry_after
from envbuilder.registry.transport import Transport

_log = logging.getLogger("envbuilder.registry")
#: Bytes of a token answer (registry.md 8.2) and characters of a token that still fits a header.
_MAX_TOKEN_BODY = 1 << 20
_MAX_TOKEN = 64 << 10
#: Seconds a token lives when its answer does not say (distribution's token specification).
_DEFAULT_LIFE_S = 60.0
#: Scopes that 401 answers may add to ours.
_MAX_EXTRA_SCOPES = 16
#: Token servers that stand on another site than their registry (registry.md 7.8).
_KNOWN_REALMS = {"registry-1.docker.io": "auth.docker.io", "registry.gitlab.com": "gitlab.com"}


@dataclass(frozen=True, slots=True)
class _Token:
    header: str
    refresh_at_s: float
    expires_at_s: float


class Authorizer:
    """Authorization headers for the registry at ``origin``, known in config files as ``host``. Thread-safe."""

    def __init__(
        self,
        origin: Origin,
        host: str,
        transport: Transport,
        credentials: CredentialSource,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._origin, self._host = origin, host
        self._transport, self._credentials, self._clock = transport, credentials, clock
        self._lock = threading.Lock()
        self._challenge: Challenge | None = None
        self._tokens: dict[tuple[str, ...], _Token] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._extra: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._warned = False

    def header(self, scopes: tuple[str, ...]) -> str | None:
        """The Authorization header to send for ``scopes``; None before the first challenge, or when anonymous.

        Raises:
            Unauthorized, Denied, UnavailableError: from the token server. ForbiddenAddress: the realm.
        """
        challenge = self._challenge
        if challenge is None:
            return None
        if challenge.scheme == "basic":
            credential = self._credentials.find(self._host, _repository_of(scopes))
            return credential.basic if credential and credential.username else None
        return self._token(challenge, scopes)

    def challenged(self, answer: Answer, scopes: tuple[str, ...], sent: str | None) -> bool:
        """Learn from a 401 (or 403) to a request that carried ``sent``; whether to send it once more."""
        challenges = {item.scheme: item for item in reversed(parse_challenges(_joined(answer)))}
        challenge = challenges.get("bearer") or challenges.get("basic")
        if challenge is None:
            if answer.status == 401:  # HTTP
                return False
            challenge = self._challenge
        if challenge is None:
            return False
        with self._lock:
            self._challenge = challenge
            token = self._tokens.get(scopes)
            if token and token.header == sent:
                del self._tokens[scopes]
            self._learn_scopes(challenge, scopes)
        if challenge.scheme == "basic":
            if sent is not None:
                self._credentials.refused(self._host)
            return self.header(scopes) not in (None, sent)
        return True

    def _learn_scopes(self, challenge: Challenge, scopes: tuple[str, ...]) -> None:
        asked = challenge.parameters.get("scope", "").split()
        known = self._extra.get(scopes, ())
        new = [scope for scope in asked if scope not in scopes and scope not in known]
        self._extra[scopes] = (*known, *new)[:_MAX_EXTRA_SCOPES]

    def _token(self, challenge: Challenge, scopes: tuple[str, ...]) -> str | None:
        token = self._tokens.get(scopes)
        if token and self._clock() < token.refresh_at_s:
            return token.header
        with self._lock:
            single = self._locks.setdefault(scopes, threading.Lock())
        with single:
            token = self._tokens.get(scopes)
            if token and self._clock() < token.refresh_at_s:
                return token.header
            try:
                fresh = self._fetch_token(challenge, scopes)
            except UnavailableError:
                if token and self._clock() < token.expires_at_s:
                    return token.header
                raise
            with self._lock:
                self._tokens[scopes] = fresh
            return fresh.header

    def _fetch_token(self, challenge: Challenge, scopes: tuple[str, ...]) -> _Token:
        realm = challenge.parameters.get("realm", "")
        nearest, is_own = self._judge(realm)
        credential = self._credentials.find(self._host, _repository_of(scopes))
        if credential and not is_own:
            _log.warning("%s: no credentials go to its token server %s on another site", self._host, redact_url(realm))
            credential = None
        wanted = (*scopes, *(scope for scope in self._extra.get(scopes, ()) if scope not in scopes))
        # What the registry just asked for goes first: some token servers honour only that ([ggcr]).
        asked = challenge.parameters.get("scope", "").split()
        ordered = sorted(wanted, key=lambda scope: scope not in asked)
        service = challenge.parameters.get("service", "")
        try:
            return self._ask(realm, service, ordered, credential, nearest)
        except (Unauthorized, Denied):
            if credential is None:
                raise
            self._credentials.refused(self._host)
            if any(not scope.endswith(":pull") for scope in ordered):
                raise
            # An expired login must not block what anyone may read (registry.md 7.5, oras#1161).
            token = self._ask(realm, service, ordered, None, nearest)
            if not self._warned:
                self._warned = True
                _log.warning("%s: refused our credentials; reading without them", self._host)
            return token

    def _ask(
        self, realm: str, service: str, scopes: Sequence[str], credential: Credential | None, nearest: Kind | None
    ) -> _Token:
        headers = {"Accept": "application/json"}
        if credential and credential.identity_token:
            form = [
                ("grant_type", "refresh_token"),
                ("service", service),
                ("client_id", "envbuilder"),
                ("scope", " ".join(scopes)),
                ("refresh_token", credential.identity_token),
            ]
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            answer = self._transport.send(
                "POST", realm, headers=headers, body=urlencode(form).encode(), nearest=nearest
            )
        else:
            if credential:
                headers["Authorization"] = credential.basic
            pairs = [("service", service)] if service else []
            query = urlencode([*pairs, *(("scope", scope) for scope in scopes)])
            url = realm + ("&" if urlsplit(realm).query else "?") + query
            answer = self._transport.send("GET", url, headers=headers, nearest=nearest)
        secrets = [credential.password, credential.identity_token] if credential else []
        if answer.status != 200:  # HTTP
            refusal = parse_refusal(answer.read_start(_MAX_TOKEN_BODY), secrets)
            if 300 <= answer.status < 400:  # HTTP
                raise BadAnswer(f"{redact_url(realm)}: a token server must not redirect, got {answer.status}")
            wanted_s = parse_retry_after(answer.headers.get("Retry-After"), time.time()) or 0.0
            where = f"token for {self._host} from {redact_url(realm)}"
            raise refusal_error(where, answer.status, refusal, wanted_s)
        return self._parse(answer.read_all(_MAX_TOKEN_BODY), redact_url(realm))

    def _parse(self, data: bytes, source: str) -> _Token:
        try:
            value = parse_json_object(data, source=source)
        except InvalidJson:
            # Its text would quote the body, which may hold the token.
            raise BadAnswer(f"{source}: want a JSON object with a token") from None
        token = value.get("token") or value.get("access_token")
        if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN or not token.isascii() or not _is_word(token):
            raise BadAnswer(f"{source}: want a token that fits a header")
        life = value.get("expires_in")
        if isinstance(life, bool) or not isinstance(life, (int, float)) or not 0 < life < 1e9:  # sane
            life = _DEFAULT_LIFE_S
        now = self._clock()
        return _Token(f"Bearer {token}", now + 0.8 * life, now + life)

    def _judge(self, realm: str) -> tuple[Kind | None, bool]:
        """How near the realm's address may be, and whether our credentials may go there.

        Raises:
            ForbiddenAddress: the realm is no place to ask (registry.md 7.8).
        """
        try:
            origin = Origin.of(realm)
        except ForbiddenAddress as error:
            raise ForbiddenAddress(f"{self._host}: token server: {error}") from error
        if origin.scheme == "http" and self._origin.scheme != "http":
            raise ForbiddenAddress(
                f"{self._host}: token server: want https, got {redact_url(realm)}",
                hint="Don't use this registry until its owner has mended its realm.",
            )
        if origin.host == self._origin.host or self._transport.settings.trusts(origin):
            return None, True
        nearest = Kind.LOOPBACK if is_loopback_name(self._origin.host) else Kind.GLOBAL
        return nearest, _KNOWN_REALMS.get(self._origin.host) == origin.host or same_site(self._origin.host, origin.host)


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
    if len(labels) < 2 or ".".join(labels) in _SHARED:
        return False
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


def _joined(answer: Answer) -> str:
    return answer.headers.get("WWW-Authenticate") or ""


def _is_word(token: str) -> bool:
    return token.isprintable() and " " not in token


def _repository_of(scopes: tuple[str, ...]) -> str:
    """The repository of the first scope, ``repository:NAME:ACTIONS``."""
    parts = scopes[0].split(":") if scopes else []
    return parts[1] if len(parts) == 3 else ""
