"""Connection pools: TLS, proxies, timeouts, and connections to just the addresses that were judged."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from pathlib import Path
from typing import Any, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError
from urllib3.util.connection import create_connection

from envbuilder.errors import HostError
from envbuilder.registry.addresses import Kind, Origin, allowed_addresses, is_loopback_name
from envbuilder.registry.settings import HttpSettings

#: Bytes handed to the kernel at a time while sending; a slow line must pass one within the idle timeout.
_SEND_SIZE = 256 << 10
#: Idle connections kept for each origin: readers of a mounted image and a copy's jobs at once.
_POOL_SIZE = 32


class UntrustedServer(HostError):
    """A TLS certificate is not one that this machine trusts."""


def make_pool(settings: HttpSettings, origin: Origin, nearest: Kind | None) -> urllib3.HTTPConnectionPool:
    """Connections to ``origin``, whose address may be as near as ``nearest``; None: anywhere."""
    options: dict[str, Any] = {
        "maxsize": _POOL_SIZE,
        "block": False,
        "blocksize": _SEND_SIZE,
        "socket_options": _socket_options(settings),
    }
    context = _context(settings, origin) if origin.scheme == "https" else None
    if proxy := _proxy(settings, origin):
        # The proxy resolves the name; all that can be judged here is an address that stands for itself.
        if nearest is not None and (is_loopback_name(origin.host) or _is_address(origin.host)):
            allowed_addresses(origin.host, origin.port, nearest)
        user = urllib3.util.parse_url(proxy).auth
        manager = urllib3.ProxyManager(
            proxy,
            proxy_headers=urllib3.make_headers(proxy_basic_auth=user) if user else None,
            ssl_context=context,
            **options,
        )
        return manager.connection_from_host(origin.host, origin.port, origin.scheme)
    options |= {"nearest": nearest, "idle_timeout_s": settings.idle_timeout_s}
    if context is None:
        return _PlainPool(origin.host, origin.port, **options)
    return _TlsPool(origin.host, origin.port, ssl_context=context, **options)


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


def _proxy(settings: HttpSettings, origin: Origin) -> str:
    proxies = {name.lower().removesuffix("_proxy"): text for name, text in settings.proxies.items()}
    proxy = proxies.get(origin.scheme, "")
    if not proxy or is_loopback_name(origin.host):
        return ""
    # The standard library's own reading of no_proxy; given "no" it reads no environment.
    bypass = urllib.request.proxy_bypass_environment(  # type: ignore[attr-defined]  # typeshed lacks it
        f"{origin.host}:{origin.port}", {"no": proxies.get("no", "")}
    )
    return "" if bypass else proxy


def _context(settings: HttpSettings, origin: Origin) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = [settings.ca_file] if settings.ca_file else []
    names = {f"{origin.host}:{origin.port}", origin.authority}
    found = [directory / name for directory in settings.certificate_dirs for name in sorted(names)]
    try:
        for directory in filter(Path.is_dir, found):
            files += sorted(directory.glob("*.crt"))
            for certificate in sorted(directory.glob("*.cert")):
                context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        for file in files:
            context.load_verify_locations(file)
    except (OSError, ssl.SSLError) as error:
        raise UntrustedServer(
            f"{origin}: certificates of this machine: {error}", hint="Check ca_file and certs.d."
        ) from error
    return context


class _Guarded:
    """What both kinds of connection add: judged addresses, and an idle timeout that holds while sending too."""

    def __init__(self, *args: Any, nearest: Kind | None = None, idle_timeout_s: float = 60.0, **options: Any) -> None:
        super().__init__(*args, **options)
        self._nearest, self._idle_timeout_s = nearest, idle_timeout_s

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

    def request(self: Any, *args: Any, **options: Any) -> None:
        # urllib3 gives a reused connection the connect timeout for sending, which a slow line exceeds.
        if self.sock is not None:
            self.timeout = self._idle_timeout_s
        super().request(*args, **options)  # type: ignore[misc]


class _PlainConnection(_Guarded, HTTPConnection):
    pass


class _TlsConnection(_Guarded, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _is_address(host: str) -> bool:
    return host.replace(".", "").isdigit() or ":" in host
