"""Connection pools: TLS, proxies, timeouts, and connections to just the addresses that were judged."""

from __future__ import annotations

# Every connection asks for it with its host's name, and threads that open the first ones would wait for each other.
import encodings.idna  # noqa: F401  see above
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import LocationValueError, NewConnectionError
from urllib3.util.connection import create_connection

from envbuilder.errors import HostError, SpecError
from envbuilder.registry.addresses import Kind, Origin, allowed_addresses, is_loopback_name
from envbuilder.registry.head import WholeHead
from envbuilder.registry.proxies import proxy_for
from envbuilder.registry.redact import note_sent, redact_url
from envbuilder.registry.settings import HostCertificates, HttpSettings
from envbuilder.registry.spans import Senders, send_by_hand, send_plain
from envbuilder.store.target import Span

_log = logging.getLogger("envbuilder.registry")
#: Bytes handed to the kernel at a time while sending; a slow line must pass one within the idle timeout.
_SEND_SIZE = 256 << 10
#: Idle connections kept for each origin: readers of a mounted image and a copy's jobs at once.
_POOL_SIZE = 32


class UntrustedServer(HostError):
    """A TLS certificate is not one that this machine trusts."""


class BadProxy(SpecError):
    """A proxy of the environment is no URL of one, or of a kind that is not spoken here."""


def make_pool(settings: HttpSettings, origin: Origin, nearest: Kind | None, met: Callable[[str], None]) -> AnyPool:
    """Connections to ``origin``, whose address may be as near as ``nearest``; None: anywhere.

    ``met`` is told the address that answered, of each connection that goes through no proxy.

    Raises:
        BadProxy, UntrustedServer: the proxy or a certificate that was configured. ForbiddenAddress: by ``nearest``.
    """
    options: dict[str, Any] = {
        "maxsize": _POOL_SIZE,
        "block": False,
        "blocksize": _SEND_SIZE,
        "socket_options": _socket_options(settings),
    }
    context = _context(settings, origin) if origin.scheme == "https" else None
    if proxy := proxy_for(settings.proxies, origin):
        # The proxy resolves the name; all that can be judged here is an address that stands for itself.
        if nearest is not None and (is_loopback_name(origin.host) or _is_address(origin.host)):
            allowed_addresses(origin.host, origin.port, nearest)
        return _proxied(proxy, origin, context, settings.idle_timeout_s, options)
    options |= {"nearest": nearest, "idle_timeout_s": settings.idle_timeout_s, "met": met, "senders": Senders()}
    if context is None:
        return _PlainPool(origin.host, origin.port, **options)
    return _TlsPool(origin.host, origin.port, ssl_context=context, **options)


def _proxied(
    proxy: str, origin: Origin, context: ssl.SSLContext | None, idle_timeout_s: float, options: dict[str, Any]
) -> AnyPool:
    try:
        parsed = urllib3.util.parse_url(proxy)
        if not parsed.host:
            raise LocationValueError("no host")
        user = unquote(parsed.auth or "")
        headers = urllib3.make_headers(proxy_basic_auth=user) if user else None
        note_sent((headers or {}).get("proxy-authorization", ""))
        manager = urllib3.ProxyManager(proxy, proxy_headers=headers, ssl_context=context, **options)
    except (LocationValueError, UnicodeError):
        # Without what was wrong with it: that text holds the password, and --debug shows it.
        raise BadProxy(
            f"proxy {redact_url(proxy)}: want the URL of an http or https proxy",
            hint="Mend http_proxy or https_proxy, or list the host in no_proxy.",
        ) from None
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
    pool = manager.connection_from_host(origin.host, origin.port, origin.scheme)
    pool.conn_kw |= {"idle_timeout_s": idle_timeout_s, "senders": Senders()}
    return cast("AnyPool", pool)


def _socket_options(settings: HttpSettings) -> list[tuple[int, int, int]]:
    """Probes keep an idle reader's way through a NAT open, and find out that it was closed in half a minute.

    Without them the next read of a mounted image would wait for the idle timeout.
    """
    return [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.idle_timeout_s * 1000)),
    ]


def _context(settings: HttpSettings, origin: Origin) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    own = [settings.certificates[name] for name in sorted(origin.spellings) if name in settings.certificates]
    files = [file for file in (settings.ca_file, *(each.ca_file for each in own)) if file]
    pairs = [_pair(each) for each in own if each.client_cert]
    try:
        for directory in (place / name for place in settings.certificate_dirs for name in sorted(origin.spellings)):
            if directory.is_dir():
                files += sorted(directory.glob("*.crt"))
                pairs += [(file, file.with_suffix(".key")) for file in sorted(directory.glob("*.cert"))]
        for file in files:
            context.load_verify_locations(file)
        for certificate, key in pairs:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UntrustedServer(
            f"{origin}: certificates of this machine: {error}", hint="Check ca-file, client-cert and certs.d."
        ) from error
    if not settings.unverified_hosts.isdisjoint(origin.spellings):
        _log.warning("%s: its certificate is not checked, as the configuration asks", origin)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _pair(own: HostCertificates) -> tuple[Path, Path | None]:
    assert own.client_cert is not None
    return own.client_cert, own.client_key


class _Guarded:
    """What both kinds of connection add: judged addresses, and an idle timeout that holds while sending too."""

    def __init__(
        self,
        *args: Any,
        nearest: Kind | None = None,
        idle_timeout_s: float = 60.0,
        met: Callable[[str], None] | None = None,
        senders: Senders | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._nearest, self._idle_timeout_s, self._met = nearest, idle_timeout_s, met
        self._senders = senders or Senders()

    def _new_conn(self: Any) -> socket.socket:
        if self._nearest is None:
            return cast("socket.socket", super()._new_conn())  # type: ignore[misc]
        last: OSError | None = None
        for address in allowed_addresses(self.host, self.port, self._nearest):
            try:
                return create_connection((address, self.port), self.timeout, socket_options=self.socket_options)
            except OSError as error:  # noqa: PERF203  # the next address may answer
                last = error
        raise NewConnectionError(self, f"Failed to establish a new connection: {last}") from last

    def connect(self: Any) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.settimeout(self._idle_timeout_s)
        if self._met:
            self._met(self.sock.getpeername()[0])

    def request(self: Any, *args: Any, **options: Any) -> None:
        # urllib3 gives a reused connection the connect timeout for sending, which a slow line exceeds.
        if self.sock is not None:
            self.timeout = self._idle_timeout_s
        super().request(*args, **options)  # type: ignore[misc]


class _PlainConnection(_Guarded, HTTPConnection):
    response_class = WholeHead

    def send(self, data: Any) -> None:
        if isinstance(data, Span):
            send_plain(self.sock, data, self._senders)
        else:
            super().send(data)


class _TlsConnection(_Guarded, HTTPSConnection):
    response_class = WholeHead

    def send(self, data: Any) -> None:
        if isinstance(data, Span):
            send_by_hand(super().send, data)
        else:
            super().send(data)


class _Opening:
    """What both kinds of pool add: connections that are there before a request needs one."""

    def to_open(self: Any, count: int, timeout_s: float) -> list[Callable[[], None]]:
        """Functions that open ``count`` idle connections, one each; to be called soon, at once.

        They raise HTTPError or OSError when it does not come about.
        """
        if self.proxy is not None:
            return []  # what goes through a tunnel is set up with its first request
        # Taken together, or the second would find the first. And as many places as it has are to be put back into it.
        return [partial(self._open, self._get_conn(), timeout_s) for _ in range(count)]

    def _open(self: Any, connection: Any, timeout_s: float) -> None:
        try:
            if connection.is_closed:
                connection.timeout = timeout_s
                connection.connect()
        finally:
            self._put_conn(connection)


class _PlainPool(_Opening, urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(_Opening, urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection

    def _validate_conn(self, conn: Any) -> None:
        # urllib3's own goes on to warn of a certificate that is not checked, at each request: we said so once.
        if conn.is_closed:
            conn.connect()


AnyPool: TypeAlias = _PlainPool | _TlsPool


def _is_address(host: str) -> bool:
    """Also as the C library reads one: ``0x7f.1`` is this machine."""
    try:
        socket.inet_aton(host)
    except OSError:
        return ":" in host
    return True
