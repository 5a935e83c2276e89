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
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.errors import EnvbuilderError, UnavailableError
from envbuilder.registry.addresses import Kind, Origin
from envbuilder.registry.answer import Answer
from envbuilder.registry.credentials import Credential, CredentialSource, is_header_word
from envbuilder.registry.errors import (
    BadAnswer,
    Denied,
    Unauthorized,
    parse_refusal,
    refusal_error,
)
from envbuilder.registry.redact import note_sent, redact_url
from envbuilder.registry.retry import parse_retry_after
from envbuilder.registry.transport import Transport

if TYPE_CHECKING:
    from envbuilder.registry.challenge import Challenge

_log = logging.getLogger("envbuilder.registry")
#: Bytes of a token answer (registry.md 8.2) and characters of a token that still fits a header.
_MAX_TOKEN_BODY = 1 << 20
_MAX_TOKEN = 64 << 10
#: Seconds a token lives when its answer does not say (distribution's token specification).
_DEFAULT_LIFE_S = 60.0
#: Characters of a service's name that are shown.
_MAX_SHOWN = 100
#: Scopes that 401 answers may add to ours.
_MAX_EXTRA_SCOPES = 16


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
        self._failed: dict[tuple[str, ...], EnvbuilderError] = {}
        self._warned: set[str] = set()

    @property
    def asked(self) -> bool:
        """Whether the registry asked who we are."""
        return self._challenge is not None

    @property
    def way(self) -> str:
        """How the registry asks who we are, and where our credentials go, for people."""
        challenge = self._challenge
        if challenge is None:
            return "it asks nobody"
        if challenge.scheme == "basic":
            return "Basic: our credentials go to the registry with each request"
        realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service", "")
        text = f"Bearer: tokens from {redact_url(realm)} for {service[:_MAX_SHOWN]!r}"
        from envbuilder.registry.realms import judge  # noqa: PLC0415  only where a token server is named

        is_own = judge(realm, self._origin, self._host, self._transport.settings).is_own
        return text if is_own else f"{text}; it is on another site and gets no credentials of ours"

    def header(self, scopes: tuple[str, ...]) -> str | None:
        """The Authorization header to send for ``scopes``; None before the first challenge, or when anonymous.

        Raises:
            Unauthorized, Denied, UnavailableError: from the token server. ForbiddenAddress: the realm.
        """
        challenge = self._challenge
        if challenge is None:
            return None
        credential = self._find(scopes)
        if credential and credential.registry_token:
            return f"Bearer {credential.registry_token}"
        if challenge.scheme == "basic":
            return credential.basic if credential and credential.username else None
        return self._token(challenge, scopes)

    def _find(self, scopes: tuple[str, ...]) -> Credential | None:
        repository, actions = parse_scope(scopes[0]) if scopes else ("", ())
        return self._credentials.find(self._host, repository, actions)

    def challenged(self, answer: Answer, scopes: tuple[str, ...], sent: str | None) -> bool:
        """Learn from a 401 (or 403) to a request that carried ``sent``; whether to send it once more."""
        from envbuilder.registry.challenge import parse_challenges  # noqa: PLC0415  our first request needs none

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
        credential = self._find(scopes)
        if challenge.scheme == "basic" or (credential and credential.registry_token):
            if sent is not None:
                self._credentials.refused(self._host)
            return self.header(scopes) not in (None, sent)
        return True

    def _learn_scopes(self, challenge: Challenge, scopes: tuple[str, ...]) -> None:
        asked = challenge.parameters.get("scope", "").split()
        known = self._extra.get(scopes, ())
        new = [scope for scope in asked if not any(_covers(one, scope) for one in (*scopes, *known))]
        self._extra[scopes] = (*known, *new)[:_MAX_EXTRA_SCOPES]

    def _token(self, challenge: Challenge, scopes: tuple[str, ...]) -> str | None:
        token = self._tokens.get(scopes)
        if token and self._clock() < token.refresh_at_s:
            return token.header
        with self._lock:
            single = self._locks.setdefault(scopes, threading.Lock())
            before = self._failed.get(scopes)
        with single:
            token = self._tokens.get(scopes)
            if token and self._clock() < token.refresh_at_s:
                return token.header
            failed = self._failed.get(scopes)
            if failed and failed is not before:
                # What was refused while we waited is not asked once more by each waiter: accounts get locked so.
                raise failed
            try:
                fresh = self._fetch_token(challenge, scopes)
            except UnavailableError:
                if token and self._clock() < token.expires_at_s:
                    return token.header
                raise
            except EnvbuilderError as error:
                self._failed[scopes] = error
                raise
            with self._lock:
                self._tokens[scopes] = fresh
            return fresh.header

    def _fetch_token(self, challenge: Challenge, scopes: tuple[str, ...]) -> _Token:
        from envbuilder.registry.realms import judge  # noqa: PLC0415  only where a token server is named

        realm = challenge.parameters.get("realm", "")
        judged = judge(realm, self._origin, self._host, self._transport.settings)
        credential = self._find(scopes)
        if credential and not judged.is_own:
            self._tell(f"no credentials go to its token server {redact_url(realm)} on another site")
            credential = None
        wanted = (*scopes, *(scope for scope in self._extra.get(scopes, ()) if scope not in scopes))
        # What the registry just asked for goes first: some token servers honour only that ([ggcr]).
        asked = challenge.parameters.get("scope", "").split()
        ordered = sorted(wanted, key=lambda scope: scope not in asked)
        ask = partial(self._ask, realm, challenge.parameters.get("service", ""), ordered, nearest=judged.nearest)
        try:
            return ask(credential)
        except (Unauthorized, Denied) as error:
            if credential is None:
                raise
            refusal = error
        self._credentials.refused(self._host)
        # A credential of short life may have ended; a program that makes them is asked for the next one.
        again = self._find(scopes)
        if again and again != credential:
            try:
                return ask(again)
            except (Unauthorized, Denied) as error:
                refusal = error
        if not ordered or any(parse_scope(scope)[1] != ("pull",) for scope in ordered):
            raise refusal
        # An expired login must not block what anyone may read (registry.md 7.5, oras#1161).
        token = ask(None)
        self._tell("refused our credentials; reading without them")
        return token

    def _tell(self, text: str) -> None:
        with self._lock:
            new = text not in self._warned
            self._warned.add(text)
        if new:
            _log.warning("%s: %s", self._host, text)

    def _ask(
        self, realm: str, service: str, scopes: Sequence[str], credential: Credential | None, *, nearest: Kind | None
    ) -> _Token:
        who = "without credentials" if credential is None else "with our credentials"
        why = f"token for {self._host}, {who}"
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
            note_sent("", credential.identity_token)
            answer = self._transport.send(
                "POST", realm, headers=headers, body=urlencode(form).encode(), nearest=nearest, why=why
            )
        else:
            if credential:
                headers["Authorization"] = credential.basic
            pairs = [("service", service)] if service else []
            query = urlencode([*pairs, *(("scope", scope) for scope in scopes)])
            url = realm + ("&" if urlsplit(realm).query else "?") + query
            answer = self._transport.send("GET", url, headers=headers, nearest=nearest, why=why)
        secrets = [credential.password, credential.identity_token, credential.basic[6:]] if credential else []
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
        if not isinstance(token, str) or not 0 < len(token) <= _MAX_TOKEN or not is_header_word(token):
            raise BadAnswer(f"{source}: want a token that fits a header")
        life = value.get("expires_in")
        if isinstance(life, bool) or not isinstance(life, (int, float)) or not 0 < life < 1e9:  # sane
            life = _DEFAULT_LIFE_S
        now = self._clock()
        return _Token(f"Bearer {token}", now + 0.8 * life, now + life)


def _joined(answer: Answer) -> str:
    return answer.headers.get("WWW-Authenticate") or ""


def _covers(one: str, other: str) -> bool:
    """Whether scope ``one`` lets do all that ``other`` does: asking for both could get the lesser (registry.md 7.4)."""
    (name, actions), (wanted_name, wanted) = parse_scope(one), parse_scope(other)
    return one == other or (bool(name) and name == wanted_name and set(wanted) <= set(actions))


def parse_scope(scope: str) -> tuple[str, tuple[str, ...]]:
    """Repository and actions of ``repository:NAME:ACTIONS``; ("", ()) of anything else."""
    kind, _, rest = scope.partition(":")
    name, _, actions = rest.rpartition(":")
    return (name, tuple(actions.split(","))) if kind == "repository" and name else ("", ())
