"""A request to a registry until it has an answer: authorization, patience, redirects.

``RegistryClient`` is what a process has one of; ``Registry`` is one host of it. Credentials
go to the registry's own origin only, whatever a redirect or a Location says.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urldefrag, urljoin

from envbuilder.errors import EnvbuilderError
from envbuilder.registry.addresses import Kind, Origin, is_loopback_name
from envbuilder.registry.answer import Answer, TooSlow
from envbuilder.registry.auth import Authorizer
from envbuilder.registry.contact import Unreachable
from envbuilder.registry.credentials import Anonymous, CredentialSource
from envbuilder.registry.errors import (
    MAX_ERROR_SIZE,
    BadAnswer,
    ForbiddenAddress,
    RateLimited,
    RegistryDown,
    parse_refusal,
    refusal_error,
)
from envbuilder.registry.grants import granted
from envbuilder.registry.profiles import Profile, profile_of_answer
from envbuilder.registry.purposes import purpose_of
from envbuilder.registry.redact import redact_url, secrets_of
from envbuilder.registry.retry import RETRYABLE, RetryPolicy, parse_retry_after
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.transport import Transport
from envbuilder.store.begun import begun
from envbuilder.store.pace import Pace
from envbuilder.store.target import Opener

_log = logging.getLogger("envbuilder.registry")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Answers of a registry that is asked too much at a time.
_OVERRUN = frozenset({429, 503})
#: Redirects followed in one request (registry.md 3 allows them anywhere; five is one more than seen).
_MAX_REDIRECTS = 5
#: Times one request may be sent again with other authorization: a challenge, then an expired token.
_MAX_CHALLENGES = 3
#: Before a registry's first answer: how often we knock, and the first wait in seconds. Who mistyped a name or a port
#: is told so within a second; a registry that did answer and went away is waited for with all patience.
_KNOCKS, _FIRST_KNOCK_S = 3, 0.2
#: Seconds between two lines that tell people why we wait for the same registry.
_SAY_EVERY_S = 5.0
#: Docker Hub's name for people, and where its API is.
_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as the caller means it, before authorization, retries and redirects.

    scopes: what a token must allow, as ``repository:NAME:ACTIONS``. body: opened anew for each attempt.
    retry: whether sending it twice is harmless. why: what the caller wants of it, for the log.
    """

    method: str
    url: str
    scopes: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    body: Opener | bytes | None = None
    size: int = 0
    retry: bool = True
    answer_timeout_s: float | None = None
    why: str = ""


class RegistryClient:
    """All registries that a process talks to; thread-safe, made once, closed at the end.

    ``sleep``, ``clock`` and ``jitter`` are the world's, so that a test need not wait.
    """

    def __init__(
        self,
        settings: HttpSettings | None = None,
        credentials: CredentialSource | None = None,
        *,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.transport = Transport(settings)
        self.retry = retry or RetryPolicy(budget_s=self.transport.settings.retry_budget_s)
        self.sleep, self.clock, self.jitter = sleep, clock, jitter
        self._credentials = credentials or Anonymous()
        self._lock = threading.Lock()
        self._registries: dict[str, Registry] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process has a world of its own: connections, tokens and clocks are not sent.
        return RegistryClient, (self.transport.settings, self._credentials)

    def registry(self, host: str) -> Registry:
        """The registry that references call ``host``."""
        with self._lock:
            if host not in self._registries:
                self._registries[host] = Registry(self, host, self._credentials)
            return self._registries[host]

    def pause_s(self, attempt: int, waited_s: float, wanted_s: float | None = None) -> float | None:
        """Seconds to wait after failed attempt number ``attempt``; None: give up."""
        return self.retry.wait_s(attempt, waited_s, wanted_s, self.jitter())

    def close(self) -> None:
        """Close idle connections."""
        self.transport.close()

    def __enter__(self) -> RegistryClient:  # noqa: PYI034  # typing.Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Registry:
    """One registry host: its origin, its tokens, and requests that come back with an answer. Thread-safe."""

    def __init__(self, client: RegistryClient, host: str, credentials: CredentialSource) -> None:
        self._client, self._transport = client, client.transport
        self.host = host
        #: How many blobs of it are moved at a time, in either direction.
        self.pace = Pace(clock=client.clock)
        self._lock = threading.Lock()
        self._answered = False
        #: The product that its challenge gives away (Harbor, Quay, zot): no other answer does.
        self.product: Profile | None = None
        self._said_s = -_SAY_EVERY_S
        api = _HUB.get(host, host)
        self.origin = Origin.of(f"{self._transport.settings.scheme_of(api)}://{api}/")
        self._auth = Authorizer(self.origin, host, self._transport, credentials, clock=client.clock)

    @property
    def asks(self) -> bool:
        """Whether it asked who we are."""
        return self._auth.asked

    @property
    def way(self) -> str:
        """How it asks who we are, and where our credentials go, for people.

        Raises:
            ForbiddenAddress: to a place that must not be asked.
        """
        return self._auth.way

    def granted(self, scopes: tuple[str, ...]) -> tuple[str, ...] | None:
        """What the token for ``scopes`` says that it grants; None: it does not say, or there is none. Unverified.

        Raises:
            Unauthorized, Denied, UnavailableError: from the token server.
        """
        scheme, _, token = (self._auth.header(scopes) or "").partition(" ")
        return granted(token) if scheme == "Bearer" else None

    def open_ahead(self, count: int) -> None:
        """Begin to open ``count`` connections that requests of the next moments will need at once; waits for none."""
        begun(partial(self._transport.open_ahead, self.origin, count), "connect")

    def url(self, path: str) -> str:
        """The URL of an API ``path`` that starts with ``/v2/``."""
        return f"{self.origin}{path}"

    def request(self, call: Call, accept: Container[int]) -> Answer:
        """The answer to ``call``, with a status in ``accept``; its body is unread.

        Raises:
            NotFound, Unauthorized, Denied, RateLimited, RegistryDown, Rejected: any other status.
            ForbiddenAddress: a redirect leads where it must not.
        """
        attempt, waited_s = 0, 0.0
        while True:
            attempt += 1
            error: EnvbuilderError
            wanted_s = None
            try:
                answer, sent = self._authorized(call, attempt)
            except RegistryDown as down:
                error = down
            except RateLimited as limited:  # by the token server
                error, wanted_s = limited, limited.retry_after_s
            else:
                self._answered = True
                if answer.status in accept:
                    return answer
                wanted_s = parse_retry_after(answer.headers.get("Retry-After"), time.time())
                error = self._error(call, answer, wanted_s, sent)
                if answer.status in _OVERRUN:
                    self.pace.slower()
                if answer.status not in RETRYABLE:
                    raise error
            pause_s = self._pause_s(error, attempt, waited_s, wanted_s) if call.retry else None
            if pause_s is None:
                raise error
            self._say(error, pause_s)
            self._client.sleep(pause_s)
            waited_s += pause_s

    def whole(self, call: Call, answer: Answer, most: int) -> tuple[Answer, bytes]:
        """``answer``, which ``call`` got, and its body of at most ``most`` bytes; asked for again when it breaks off.

        Raises:
            BadAnswer: it has more. Otherwise as ``request``.
        """
        attempt, waited_s = 0, 0.0
        while True:
            try:
                return answer, answer.read_all(most)
            except RegistryDown as error:
                attempt += 1
                pause_s = self._pause_s(error, attempt, waited_s, None)
                if pause_s is None or isinstance(error, TooSlow):
                    raise
                self._say(error, pause_s)
            self._client.sleep(pause_s)
            waited_s += pause_s
            answer = self.request(call, (answer.status,))

    def _pause_s(self, error: EnvbuilderError, attempt: int, waited_s: float, wanted_s: float | None) -> float | None:
        if isinstance(error, Unreachable) and not self._answered:
            if error.hopeless or attempt >= _KNOCKS:
                return None
            pause_s = self._client.pause_s(attempt, waited_s)
            return None if pause_s is None else min(pause_s, _FIRST_KNOCK_S * 2 ** (attempt - 1))
        return self._client.pause_s(attempt, waited_s, wanted_s)

    def _say(self, error: EnvbuilderError, pause_s: float) -> None:
        """A wait is no secret; those of many requests to one registry are one line."""
        now_s = self._client.clock()
        with self._lock:
            is_news = now_s - self._said_s >= _SAY_EVERY_S
            self._said_s = now_s if is_news else self._said_s
        _log.log(logging.WARNING if is_news else logging.DEBUG, "%s; again in %.1f s", error, pause_s)

    def follow(self, location: str, base: str) -> str:
        """The absolute URL that ``location`` means in an answer from ``base``.

        Raises:
            ForbiddenAddress: no URL to go to, or one that gives up https.
        """
        try:
            # A fragment is not for the server, and what is appended to the URL would become part of it.
            url = urldefrag(urljoin(base, location)).url
        except ValueError as error:
            raise ForbiddenAddress(f"{redact_url(base)}: Location: not a URL") from error
        if Origin.of(url).scheme == "http" and Origin.of(base).scheme == "https":
            raise ForbiddenAddress(f"{redact_url(base)}: leads from https to {redact_url(url)}")
        return url

    def _authorized(self, call: Call, attempt: int) -> tuple[Answer, str]:
        """The answer after challenges and redirects, of any status, and the Authorization that was sent for it."""
        url, challenges, redirects = call.url, 0, 0
        why = [call.why or purpose_of(call.method, call.url), *([f"attempt {attempt}"] if attempt > 1 else [])]
        while True:
            own = Origin.of(url) == self.origin
            headers = dict(call.headers)
            with _opened(call.body) as body:
                sent = self._auth.header(call.scopes) if own else None
                if sent is not None:
                    headers["Authorization"] = sent
                answer = self._transport.send(
                    call.method,
                    url,
                    headers=headers,
                    body=body,
                    size=call.size,
                    nearest=None if own else self._nearest(Origin.of(url)),
                    answer_timeout_s=call.answer_timeout_s,
                    why=", ".join(why),
                )
            # 403 too: some registries (ECR) say so of an expired token. One more try with a fresh one decides.
            refused = answer.status == 401 or (answer.status == 403 and sent is not None and challenges == 0)
            if own and refused and challenges < _MAX_CHALLENGES:
                challenges += 1
                self.product = self.product or profile_of_answer(answer.headers)
                if self._auth.challenged(answer, call.scopes, sent):
                    answer.finish()
                    why.append(f"again after {answer.status}")
                    continue
            if answer.status in _REDIRECTS and call.method in ("GET", "HEAD") and "Location" in answer.headers:
                redirects += 1
                answer.finish()
                if redirects > _MAX_REDIRECTS:
                    raise BadAnswer(f"{call.method} {redact_url(call.url)}: more than {_MAX_REDIRECTS} redirects")
                url = self.follow(answer.headers["Location"], url)
                why.append("redirected")
                continue
            return answer, sent or ""

    def _nearest(self, origin: Origin) -> Kind | None:
        """How near an address may be that this registry names: no nearer than its own."""
        if origin.host == self.origin.host or self._transport.settings.trusts(origin):
            return None
        met = self._transport.nearness(self.origin)
        if met is None:
            met = Kind.LOOPBACK if is_loopback_name(self.origin.host) else Kind.GLOBAL
        return met

    def _error(self, call: Call, answer: Answer, retry_after_s: float | None, sent: str) -> EnvbuilderError:
        # What was sent may come back as part of the text.
        body = answer.read_start(MAX_ERROR_SIZE) if call.method != "HEAD" else b""
        refusal = parse_refusal(body, secrets_of(sent))
        if call.method == "HEAD":
            answer.finish()
        where = f"{call.method} {answer.where}"
        return refusal_error(where, answer.status, refusal, retry_after_s or 0.0)


@contextlib.contextmanager
def _opened(body: Opener | bytes | None) -> Iterator[Opener | bytes | None]:
    """``body``, open before its token is chosen: reading on to the middle of a slow source may outlast a token."""
    if body is None or isinstance(body, bytes):
        yield body
    else:
        with contextlib.closing(body()) as stream:
            yield lambda: stream
