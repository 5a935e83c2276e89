"""A small HTTP server in this process: a function of a request gives the reply, which may be cut, drip or never end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came in. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, list[str]] = field(hash=False)
    headers: Mapping[str, str] = field(hash=False)
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What goes out. ``cut_at``: bytes of the body after which the connection is reset.

    ``drip_s``: seconds between two bytes of the body. ``endless`` repeats the body for as long as
    the client reads, without a length.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    body: bytes = field(default=b"", repr=False)
    cut_at: int | None = None
    drip_s: float = 0.0
    endless: bool = False


class HttpServer(ThreadingHTTPServer):
    """A server on a free port of this machine."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer

    @property
    def host(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.server_address[1]}"

    def begin(self) -> None:
        """Serve in a thread until ``end``."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def end(self) -> None:
        """Serve no more."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what many tests are about: no trace of it on stderr."""


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        pass

    def serve(self) -> None:
        """Answer one request of any method."""
        parts = urlsplit(self.path)
        request = Request(
            method=self.command,
            path=parts.path,
            query=parse_qs(parts.query, keep_blank_values=True),
            headers={name.lower(): text for name, text in self.headers.items()},
            body=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
        )
        with contextlib.suppress(OSError):
            self._send(self.server.answer(request))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815  # http.server finds them by name

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, text in reply.headers.items():
            self.send_header(name, text)
        if not reply.endless and "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if reply.endless:
            self.close_connection = True
            while True:
                self.wfile.write(reply.body)
        if reply.drip_s:
            for byte in reply.body:
                self.wfile.write(bytes([byte]))
                self.wfile.flush()
                time.sleep(reply.drip_s)
        elif reply.cut_at is not None:
            self.wfile.write(reply.body[: reply.cut_at])
            self.close_connection = True
        else:
            self.wfile.write(reply.body)
        self.wfile.flush()
