"""A Python index and Debian mirror on loopback, with faults, and tiny wheels to put into it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import io
import json
import re
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from envbuilder.digest import Digest
from envbuilder.lock.model import Wheel


def tiny_wheel(
    name: str, version: str, *, requires: Sequence[str] = (), tag: str = "py3-none-any", padding: int = 0
) -> tuple[str, bytes]:
    """File name and bytes of a wheel with one module; the same arguments give the same bytes."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{module}.py": f"version = {version!r}\n".encode(),
        f"{module}.bin": hashlib.shake_128(name.encode()).digest(padding),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{path},sha256={_urlsafe(data)},{len(data)}\n" for path, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path), data)
    return f"{module}-{version}-{tag}.whl", out.getvalue()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that gives up is what the tests are about."""


@dataclass(slots=True)
class Answer:
    """What goes out; a fault changes it. ``cut`` is the number of body bytes after which the connection breaks."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


@dataclass(slots=True)
class PackageIndex:
    """Projects below ``/simple/``, plain files below ``/files/`` and ``/debian/``; a context manager.

    files: bytes by path. projects: file names by project.
    faults: answers by path, each used once, in place of the right one; ``cut`` alone shortens the right one.
    seen: (path, headers) of every request. html: pages as HTML (PEP 503). user: "name:password" that is wanted.
    ranges: whether Range is honoured. hashes, sizes: whether pages promise digests and sizes.
    quoted: whether addresses are written with ``%2B`` for ``+`` and end with a query, as PyTorch's and signed ones are.
    promised: sha256 by file name, in place of the right one. A page of links to all files is at ``/links.html``.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    projects: dict[str, list[str]] = field(default_factory=dict)
    faults: dict[str, list[Answer]] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    html: bool = False
    user: str = ""
    ranges: bool = True
    hashes: bool = True
    sizes: bool = True
    quoted: bool = False
    files_host: str = ""
    promised: dict[str, str] = field(default_factory=dict)
    _server: Any = None

    def __enter__(self) -> PackageIndex:  # noqa: PYI034 - typing.Self is of Python 3.11
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's delayed ACK

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                headers = {name.lower(): value for name, value in self.headers.items()}
                index.seen.append((path, headers))
                right = index._answer(path, headers)
                queue = index.faults.get(path, [])
                answer = queue.pop(0) if queue else right
                if answer.status == 0:
                    answer = Answer(right.status, right.body, right.headers, answer.cut)
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(answer.body[: answer.cut])
                if answer.cut is not None:
                    self.close_connection = True

            def do_HEAD(self) -> None:
                # uv asks for a wheel's size first, and reads it whole when ranges are not offered.
                path = unquote(urlsplit(self.path).path)
                answer = index._answer(path, {name.lower(): value for name, value in self.headers.items()})
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def address(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The address of the simple index."""
        return f"{self.address}/simple"

    def add(self, name: str, version: str, **options: Any) -> Wheel:
        """Offer a tiny wheel; return it as a lock would hold it."""
        file, data = tiny_wheel(name, version, **options)
        self.files[f"/files/{file}"] = data
        self.projects.setdefault(name, []).append(file)
        return Wheel(name=name, version=version, file=file, digest=Digest.of(data), size=len(data), layer="")

    def add_source(self, name: str, version: str) -> None:
        """Offer a release that has no wheel."""
        file = f"{name.replace('-', '_')}-{version}.tar.gz"
        self.files[f"/files/{file}"] = b"source"
        self.projects.setdefault(name, []).append(file)

    def _answer(self, path: str, headers: dict[str, str]) -> Answer:
        wanted = "Basic " + base64.b64encode(self.user.encode()).decode()
        if self.user and headers.get("authorization") != wanted:
            return Answer(401, b"who are you?")
        if match := re.fullmatch(r"/simple/([^/]+)/", path):
            return self._page(match[1])
        if path == "/links.html":
            return self._links([name for names in self.projects.values() for name in names])
        data = self.files.get(path)
        if data is None:
            return Answer(404, b"no such file")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
        if not asked or not self.ranges:
            return Answer(200, data)
        at, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
        if at >= len(data):
            return Answer(416, b"")
        return Answer(206, data[at : end + 1], {"Content-Range": f"bytes {at}-{end}/{len(data)}"})

    def _page(self, project: str) -> Answer:
        if project not in self.projects:
            return Answer(404, b"no such project")
        if self.html:
            return self._links(self.projects[project])
        entries = [(name, self.files[f"/files/{name}"]) for name in self.projects[project]]
        digests = {name: self.promised.get(name) or hashlib.sha256(data).hexdigest() for name, data in entries}
        files = [
            {
                "filename": name,
                "url": f"{self.files_host}/files/{self._written(name)}",
                "hashes": {"sha256": digests[name]} if self.hashes else {},
                **({"size": len(data)} if self.sizes else {}),
            }
            for name, data in entries
        ]
        page = {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}
        return Answer(200, json.dumps(page).encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})

    def _written(self, name: str) -> str:
        return quote(name) + "?signature=12" if self.quoted else name

    def _links(self, names: Sequence[str]) -> Answer:
        anchors = "".join(
            f'<a href="{self.files_host}/files/{html.escape(self._written(name))}'
            f'#sha256={hashlib.sha256(self.files[f"/files/{name}"]).hexdigest()}">{name}</a>'
            for name in names
        )
        return Answer(200, f"<html><body>{anchors}</body></html>".encode(), {"Content-Type": "text/html"})
