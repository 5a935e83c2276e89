"""One HTTP request: sent once, logged once. No retry, no redirect, no credentials.

urllib3 2.x, HTTP/1.1, threads (registry.md 13: HTTP/2 is not how the fast tools get their
speed, and it slows uploads).
"""

from __future__ import annotations

import io
import logging
import re
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO, cast

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as SlowError

from envbuilder.errors import EnvbuilderError
from envbuilder.registry.addresses import Kind, Origin, kind_of
from envbuilder.registry.answer import Answer, reason_of
from envbuilder.registry.body import FilePart
from envbuilder.registry.contact import down_error
from envbuilder.registry.errors import ForbiddenAddress, Refusal, refusal_error
from envbuilder.registry.notices import Notices
from envbuilder.registry.pools import AnyPool, UntrustedServer, make_pool
from envbuilder.registry.redact import note_sent, redact_headers, redact_url
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.spans import UnreadableBody
from envbuilder.store.begun import begun
from envbuilder.store.target import Opener

#: What stands before the path of a URL (RFC 3986, 3.2).
_TARGET = re.compile(r"[A-Za-z]+://[^/?#]*")
#: What http.client says of a proxy that does not open a tunnel: not for this host (403), or not for us (407).
_TUNNEL_REFUSED = re.compile(r"Tunnel connection failed: (403|407)\b")
_log = logging.getLogger("envbuilder.registry")


class Transport:
    """Connection pools and one request at a time on each; thread-safe, one for a whole process."""

    def __init__(self, settings: HttpSettings | None = None) -> None:
        self.settings = settings or HttpSettings()
        self._lock = threading.Lock()
        self._pools: dict[tuple[Origin, Kind | None], AnyPool] = {}
        self._peers: dict[Origin, Kind] = {}
        self._notices = Notices()

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: Opener | bytes | None = None,
        size: int = 0,
        nearest: Kind | None = None,
        answer_timeout_s: float | None = None,
        why: str = "",
    ) -> Answer:
        """Send one request and return the answer, whatever its status; its body is not read yet.

        ``body`` of ``size`` bytes is opened here. ``nearest``: how near the address may be; None: anywhere.
        ``why`` stands in the log.

        Raises:
            RegistryDown: no connection, or it broke. UntrustedServer: TLS. ForbiddenAddress: by ``nearest``.
        """
        origin = Origin.of(url)
        target = _TARGET.sub("", url, count=1).partition("#")[0]
        if not target.startswith("/"):
            target = "/" + target
        sent = {"Accept-Encoding": "identity", "User-Agent": self.settings.user_agent, **headers}
        if authorization := headers.get("Authorization"):
            note_sent(authorization)
        stream = body if isinstance(body, bytes) or body is None else _readable(body)
        if stream is not None:
            sent["Content-Length"] = str(len(stream) if isinstance(stream, bytes) else size)
        timeout = urllib3.Timeout(
            connect=self.settings.connect_timeout_s, read=answer_timeout_s or self.settings.idle_timeout_s
        )
        start = time.monotonic()
        try:
            pool = self._pool(origin, nearest)
            inner = pool.urlopen(
                method,
                # A proxy that forwards is told the whole URL; one that tunnels (https) is not (RFC 9112, 3.2.2).
                f"{origin}{target}" if pool.proxy and origin.scheme == "http" else target,
                # An empty body is still a body; urllib3 would not send its length.
                body=cast("BinaryIO | bytes | None", stream if size or isinstance(stream, bytes) else None),
                headers=sent,
                redirect=False,
                retries=False,
                assert_same_host=False,
                timeout=timeout,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            failure = _transport_error(f"{method} {redact_url(url)}", origin, error)
            _log.debug("%s; after %.0f ms (%s)", failure, (time.monotonic() - start) * 1000, why)
            raise failure from error
        finally:
            if stream is not None and not isinstance(stream, bytes):
                stream.close()
        answer = Answer(inner, url, idle_timeout_s=self.settings.idle_timeout_s)
        self._note(method, answer, sent, time.monotonic() - start, why)
        return answer

    def open_ahead(self, origin: Origin, count: int) -> None:
        """Open ``count`` connections to ``origin`` for requests to come; one that cannot be had is their matter."""
        try:
            ways = self._pool(origin, None).to_open(count, self.settings.connect_timeout_s)
        except EnvbuilderError:
            return
        for way in ways:
            begun(way, "connect")

    def nearness(self, origin: Origin) -> Kind | None:
        """The kind of address that answered as ``origin``: the farthest ever met; None before that, or by proxy.

        Asking the name again would let a hostile registry name our own addresses then (DNS rebinding).
        """
        return self._peers.get(origin)

    def close(self) -> None:
        """Close every idle connection; requests that run are not disturbed."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            pool.close()

    def _note(self, method: str, answer: Answer, sent: Mapping[str, str], seconds: float, why: str) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                "%s %s (%s) -> %d in %.0f ms; sent %s; got %s",
                method,
                answer.where,
                why,
                answer.status,
                seconds * 1000,
                redact_headers(sent),
                redact_headers(dict(answer.headers)),
            )
        if warning := answer.headers.get("Warning"):
            for text in self._notices.new(warning):
                _log.warning("%s says: %s", Origin.of(answer.url), text)

    def _pool(self, origin: Origin, nearest: Kind | None) -> AnyPool:
        key = (origin, nearest)
        with self._lock:
            if key not in self._pools:
                self._pools[key] = make_pool(self.settings, origin, nearest, partial(self._meet, origin))
            return self._pools[key]

    def _meet(self, origin: Origin, address: str) -> None:
        with self._lock:
            self._peers[origin] = min(kind_of(address), self._peers.get(origin, Kind.FORBIDDEN))


class _Body(io.RawIOBase):
    """A body whose disk errors can't be taken for errors of the connection."""

    def __init__(self, inner: BinaryIO) -> None:
        super().__init__()
        self._inner = inner

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._inner.read(size)
        except OSError as error:
            raise UnreadableBody(error) from error

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _readable(opener: Opener) -> _Body | FilePart:
    stream: object = opener()
    return stream if isinstance(stream, FilePart) else _Body(cast("BinaryIO", stream))


def _transport_error(where: str, origin: Origin, error: Exception) -> Exception:
    if isinstance(error, SSLError):
        reason = reason_of(error)
        hint = f"Put the CA's certificate into certs.d/{origin.authority}/, or name it as ca_file."
        if "WRONG_VERSION" in reason or "record layer" in reason:
            hint = f"If {origin.authority} speaks plain http, list it as such."
        return UntrustedServer(f"{where}: TLS: {reason}", hint=hint)
    if isinstance(error, LocationValueError):
        return ForbiddenAddress(f"{where}: {reason_of(error)}")
    if refused := _TUNNEL_REFUSED.search(reason_of(error)):
        # A proxy's no stays one; asking again may lock the account there.
        return refusal_error(f"{where}: proxy", int(refused[1]), Refusal((), ""))
    # urllib3 counts a refused connection among the timeouts.
    slow = isinstance(error, SlowError) and not isinstance(error, NewConnectionError)
    text = "no answer in time" if slow else reason_of(error)
    return down_error(f"{where}: {text}", error)
