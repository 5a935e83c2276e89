"""FakeRegistry: a small registry in this process that misbehaves on request.

It keeps to the distribution-spec until a fault is set; a fault is a function of a request
and its right reply. What it was sent is in ``requests``, so that a test can assert that no
credential went where it must not. Real behaviour is tested against a real registry (servers.py).
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from envbuilder.digest import Descriptor, Digest, describe

_BLOB = re.compile(r"/v2/(?P<name>.+)/blobs/(?P<digest>[^/]+)\Z")
_MANIFEST = re.compile(r"/v2/(?P<name>.+)/manifests/(?P<tag>[^/]+)\Z")
_START = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/\Z")
_SESSION = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<id>[^/]+)\Z")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")


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


Fault: TypeAlias = Callable[[Request, Reply], Reply]


def refuse(status: int, code: str = "", message: str = "", **headers: str) -> Fault:
    """Answer with an OCI error; header names have '_' for '-'."""
    body = json.dumps({"errors": [{"code": code, "message": message}]}).encode() if code else b""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda _request, _reply: Reply(status=status, body=body, headers=named)


def redirect(url: str, status: int = 307) -> Fault:
    """Send a client elsewhere that has authorized itself."""
    reply_there = Reply(status=status, headers={"Location": url})
    return lambda _request, reply: reply if reply.status == 401 else reply_there


def cut(at: int) -> Fault:
    """Reset the connection after ``at`` bytes of the body."""
    return lambda _request, reply: replace(reply, cut_at=at)


def drip(seconds: float) -> Fault:
    """A body that comes a byte at a time."""
    return lambda _request, reply: replace(reply, drip_s=seconds)


def body(change: Callable[[bytes], bytes]) -> Fault:
    """Other bytes, with a length that is true to them."""
    return lambda _request, reply: replace(reply, body=change(reply.body))


def header(name: str, text: str) -> Fault:
    """One header set or replaced."""
    return lambda _request, reply: replace(reply, headers={**reply.headers, name: text})


def endless(_request: Request, reply: Reply) -> Reply:
    """A body without end."""
    return replace(reply, endless=True, body=reply.body or b"x" * 4096)


@dataclass(slots=True)
class _Rule:
    method: str
    path: re.Pattern[str]
    fault: Fault
    times: int


class FakeRegistry:
    """A registry on a free port of 127.0.0.1, in memory; a context manager.

    ``token``: whether requests need a bearer token of its own token server (``/token``); ``realm`` is
    where it says that server is. ``basic``: a ``name:password`` that is wanted instead.
    """

    def __init__(self, *, token: bool = False, basic: str = "", realm: str = "") -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.requests: list[Request] = []
        self.ranges = True
        self.mount = ""  # "", "accept", or "fail"
        self.relative_locations = False
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._sessions: set[str] = set()
        self._tokens: set[str] = set()
        self._made = 0
        self._server = _Server(self)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        self.token, self.basic = token, basic
        self.realm = realm or f"{self.url}/token"

    def fault(self, method: str, path: str, fault: Fault, *, times: int = 1_000_000) -> None:
        """Let the next ``times`` requests of ``method`` whose path matches the pattern ``path`` meet ``fault``."""
        with self._lock:
            self._rules.append(_Rule(method, re.compile(path), fault, times))

    def mend(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._rules.clear()

    def expire_tokens(self) -> None:
        """Let no token be valid that was given until now."""
        with self._lock:
            self._tokens.clear()

    def seen(self, method: str, path: str = "") -> list[Request]:
        """The requests of ``method`` whose path matches the pattern ``path``."""
        return [item for item in list(self.requests) if item.method == method and re.search(path, item.path)]

    def add_blob(self, data: bytes) -> Descriptor:
        """Let it hold a blob."""
        what = describe(data)
        self.blobs[str(what.digest)] = data
        return what

    def add_manifest(self, repository: str, tag: str, data: bytes, media_type: str) -> Descriptor:
        """Let it hold a manifest, whatever ``data`` is."""
        what = describe(data, media_type)
        for name in (tag, str(what.digest)):
            self.manifests[repository, name] = (media_type, data)
        return what

    def __enter__(self) -> FakeRegistry:  # noqa: PYI034  # typing.Self is of Python 3.11
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: Request) -> Reply:
        """The reply to ``request``, faults and all."""
        with self._lock:
            self.requests.append(request)
            rules = [rule for rule in self._rules if rule.method == request.method and rule.path.search(request.path)]
            faults = []
            for rule in rules:
                if rule.times > 0:
                    rule.times -= 1
                    faults.append(rule.fault)
            reply = self._right(request)
        for fault in faults:
            reply = fault(request, reply)
        return reply

    def _right(self, request: Request) -> Reply:
        if request.path == "/token":
            return self._token(request)
        if refusal := self._unauthorized(request):
            return refusal
        if match := _START.match(request.path):
            return self._start(request, match["name"])
        if match := _SESSION.match(request.path):
            return self._session(request, match["id"])
        if match := _MANIFEST.match(request.path):
            return self._manifest(request, match["name"], match["tag"])
        if (match := _BLOB.match(request.path)) and request.method in ("GET", "HEAD"):
            return self._blob(request, match["digest"])
        return Reply(status=200 if request.path == "/v2/" else 404)

    def _unauthorized(self, request: Request) -> Reply | None:
        sent = request.headers.get("authorization", "")
        if self.basic and sent != "Basic " + base64.b64encode(self.basic.encode()).decode():
            return Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="fake"'})
        if self.token and sent.removeprefix("Bearer ") not in self._tokens:
            name = re.match(r"/v2/(.+)/(?:blobs|manifests)/", request.path)
            scope = f"repository:{name[1]}:pull" if name else ""
            challenge = f'Bearer realm="{self.realm}",service="fake",scope="{scope}"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        return None

    def _token(self, request: Request) -> Reply:
        self._made += 1
        token = f"token-{self._made}"
        self._tokens.add(token)
        del request
        return Reply(body=json.dumps({"token": token, "expires_in": 300}).encode())

    def _start(self, request: Request, name: str) -> Reply:
        wanted = request.query.get("mount", [""])[0]
        if wanted and self.mount == "fail":
            return Reply(status=500)
        if wanted and self.mount == "accept" and wanted in self.blobs:
            return Reply(status=201, headers={"Location": f"/v2/{name}/blobs/{wanted}"})
        self._made += 1
        self._sessions.add(str(self._made))
        base = "" if self.relative_locations else self.url
        return Reply(
            status=202, headers={"Location": f"{base}/v2/{name}/blobs/uploads/{self._made}?_state=secret%2Fstate"}
        )

    def _session(self, request: Request, session: str) -> Reply:
        if session not in self._sessions:
            return refuse(404, "BLOB_UPLOAD_UNKNOWN")(request, Reply())
        if request.method == "DELETE":
            self._sessions.discard(session)
            return Reply(status=204)
        digest = request.query.get("digest", [""])[0]
        if request.query.get("_state") != ["secret/state"] or str(Digest.of(request.body)) != digest:
            return refuse(400, "DIGEST_INVALID")(request, Reply())
        self._sessions.discard(session)
        self.blobs[digest] = request.body
        return Reply(status=201, headers={"Docker-Content-Digest": digest})

    def _manifest(self, request: Request, name: str, tag: str) -> Reply:
        if request.method == "PUT":
            media_type = request.headers.get("content-type", "")
            what = describe(request.body, media_type)
            if tag.startswith("sha256:") and tag != str(what.digest):
                return refuse(400, "DIGEST_INVALID")(request, Reply())
            for key in (tag, str(what.digest)):
                self.manifests[name, key] = (media_type, request.body)
            return Reply(status=201, headers={"Docker-Content-Digest": str(what.digest)})
        if (name, tag) not in self.manifests:
            return refuse(404, "MANIFEST_UNKNOWN")(request, Reply())
        media_type, data = self.manifests[name, tag]
        return Reply(headers={"Content-Type": media_type, "Docker-Content-Digest": str(Digest.of(data))}, body=data)

    def _blob(self, request: Request, digest: str) -> Reply:
        if digest not in self.blobs:
            return refuse(404, "BLOB_UNKNOWN")(request, Reply())
        data = self.blobs[digest]
        match = _RANGE.match(request.headers.get("range", ""))
        if not match or not self.ranges:
            return Reply(body=data)
        start, end = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
        headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        return Reply(status=206, headers=headers, body=data[start : end + 1])


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, registry: FakeRegistry) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.registry = registry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what many tests are about: no trace of it on stderr."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
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
            self._send(self.server.registry.answer(request))

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
