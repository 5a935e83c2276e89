"""RecordingProxy: an HTTP proxy that leads names to servers of a test, looks into TLS, and keeps every request.

It proves what was sent to whom: a client that goes through it cannot send a credential unseen.
"""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Headers of one connection, which a proxy does not pass on (RFC 9110, 7.6.1).
_HOP = frozenset({"connection", "keep-alive", "proxy-authorization", "proxy-connection", "transfer-encoding"})
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request as the client sent it. ``origin``: where it wanted to go; header names are in lower case."""

    origin: str
    method: str
    target: str
    headers: Mapping[str, str] = field(hash=False, repr=False)
    body: bytes = field(default=b"", repr=False)

    def holds(self, secret: str) -> bool:
        """Whether ``secret`` is in its URL, a header or its body."""
        texts = (self.target, *self.headers.values())
        return any(secret in text for text in texts) or secret.encode() in self.body


class RecordingProxy(ThreadingHTTPServer):
    """A proxy on a free port; a context manager. ``leads``: ``name`` or ``name:port`` to ``127.0.0.1:PORT``.

    ``certificates``: the folder of ``servers.make_certificates``, whose CA the client must trust.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, leads: Mapping[str, str], certificates: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.leads = dict(leads)
        self.sent: list[Sent] = []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def to(self, name: str) -> list[Sent]:
        """The requests to the host ``name``."""
        return [item for item in list(self.sent) if urlsplit(item.origin).hostname == name]

    def __enter__(self) -> RecordingProxy:  # noqa: PYI034  # typing.Self is of Python 3.11
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: RecordingProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    tunnel = ""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass

    def do_CONNECT(self) -> None:
        """Open a tunnel and sit in the middle of it."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        self.wfile.flush()
        self.tunnel = f"https://{self.path.removesuffix(':443')}"
        for stream in (self.rfile, self.wfile):
            stream.close()
        with (
            contextlib.suppress(OSError),
            self.server.context.wrap_socket(self.connection, server_side=True) as inside,
            inside.makefile("rb") as self.rfile,
            inside.makefile("wb") as self.wfile,
        ):
            self.close_connection = False
            while not self.close_connection:
                self.handle_one_request()
        self.close_connection = True

    def forward(self) -> None:
        """Keep one request and pass it on."""
        parts = urlsplit(self.path)
        origin = self.tunnel or f"{parts.scheme}://{parts.netloc}"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): text for name, text in self.headers.items()}
        self.server.sent.append(Sent(origin=origin, method=self.command, target=target, headers=headers, body=body))
        place = urlsplit(origin)
        upstream = self.server.leads.get(place.netloc) or self.server.leads.get(place.hostname or "")
        if upstream is None:
            self._reply(502, {}, b"no such name")
            return
        passed = {name: text for name, text in headers.items() if name not in _HOP}
        there = http.client.HTTPConnection(upstream, timeout=_TIMEOUT_S)
        try:
            there.request(
                self.command, target, body=body or None, headers={**passed, "x-forwarded-proto": place.scheme}
            )
            answer = there.getresponse()
            data = answer.read()
            kept = {name: text for name, text in answer.getheaders() if name.lower() not in _HOP}
            self._reply(answer.status, kept, data)
        finally:
            there.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = forward  # noqa: N815  # http.server finds them by name

    def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if "content-length" not in {name.lower() for name in headers} and status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
