"""Fetch one URL into a file: resumed, retried, never more bytes than promised, credentials to one origin only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import urllib3
from urllib3.util import Retry, Timeout, make_headers

from envbuilder.digest import BLOCK_SIZE
from envbuilder.errors import HostError, RefusedError, UnavailableError

#: Tries without progress before we give up; waits between them double from half a second: 15 s in all.
_ATTEMPTS, _FIRST_WAIT_S, _LONGEST_WAIT_S = 6, 0.5, 20.0
#: Answers after which the same request may succeed.
RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504, 522})
_TIMEOUT = Timeout(connect=15.0, read=60.0)
#: Bytes per read. urllib3 drops a block that a broken connection cut short, so this much is asked for again.
_BLOCK = 1 << 16
#: Bytes of an index page; the largest known projects have 30 MB.
_MAX_PAGE = 128 << 20
_REDIRECTS = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5, raise_on_status=False)


class SourceUnavailable(UnavailableError):
    """An index, a mirror or the way to it did not give a file, after several tries."""


class SourceRefused(HostError):
    """An index or a mirror refused: credentials are missing or wrong."""


class SourceRejected(RefusedError):
    """An index or a mirror answered, and will answer so again, that it does not take the request."""


class ArtifactGone(RefusedError):
    """An index or a mirror no longer has the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """How files are fetched. ``wait`` sleeps; ``stopped`` says that the caller gave up."""

    pool: urllib3.PoolManager
    wait: Callable[[float], None]
    stopped: Callable[[], bool] = lambda: False


def http_pool(environment: Mapping[str, str], *, connections: int = 8) -> urllib3.PoolManager:
    """A pool that heeds the proxy and certificate variables that curl, pip and uv heed."""
    options: dict[str, object] = {"maxsize": connections, "block": False, "retries": _REDIRECTS, "timeout": _TIMEOUT}
    if bundle := environment.get("SSL_CERT_FILE") or environment.get("PIP_CERT"):
        options["ca_certs"] = bundle
    proxy = environment.get("https_proxy") or environment.get("HTTPS_PROXY") or environment.get("ALL_PROXY")
    if proxy and proxy.startswith("http"):
        return urllib3.ProxyManager(without_credentials(proxy), proxy_headers=_proxy_headers(proxy), **options)  # type: ignore[arg-type]
    return urllib3.PoolManager(**options)  # type: ignore[arg-type]


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if not parts.username:
        return {}
    return make_headers(proxy_basic_auth=f"{unquote(parts.username)}:{unquote(parts.password or '')}")


def without_credentials(url: str) -> str:
    """``url`` without its userinfo: for requests, which carry it in a header, and for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address, but it may hold a password all the same
        return re.sub(r"//.*@", "//", url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def headers_for(url: str, configured: str) -> dict[str, str]:
    """Headers of a request to ``url``: the credentials in ``configured``, if that is the same origin."""
    ours, theirs = urlsplit(configured), urlsplit(url)
    headers = {"Accept-Encoding": "identity", "User-Agent": "envbuilder"}
    if ours.username and _origin(ours.scheme, ours.netloc) == _origin(theirs.scheme, theirs.netloc):
        headers |= make_headers(basic_auth=f"{unquote(ours.username)}:{unquote(ours.password or '')}")
    return headers


def _origin(scheme: str, netloc: str) -> tuple[str, str]:
    host = netloc.rpartition("@")[2].lower()
    default = {"https": ":443", "http": ":80"}.get(scheme, "")
    return scheme, host.removesuffix(default) if default else host


def fetch_page(http: Http, url: str, headers: Mapping[str, str]) -> tuple[bytes, str, str]:
    """The whole answer at ``url``, which may come compressed: its bytes, content type and final address.

    Raises:
        ArtifactGone, SourceUnavailable, SourceRefused, SourceRejected: see there.
    """
    for attempt in range(_ATTEMPTS):
        try:
            wanted = {**headers, "Accept-Encoding": "gzip"}
            response = http.pool.request("GET", url, headers=wanted, preload_content=False)
            try:
                if response.status == 200:
                    data = bytearray()
                    for block in response.stream(_BLOCK, decode_content=True):
                        data += block
                        if len(data) > _MAX_PAGE:
                            raise SourceUnavailable(f"{without_credentials(url)}: want at most {_MAX_PAGE} bytes")
                    return bytes(data), response.headers.get("Content-Type", ""), _final(url, response)
                _refuse(response.status, url)
                why = f"status {response.status}"
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            why = _why(error)
        _pause(http, attempt, url, why)
    raise AssertionError("unreachable: _pause raises at the last attempt")


def fetch_size(http: Http, url: str, headers: Mapping[str, str]) -> int | None:
    """Bytes of the file at ``url``, as its server says; None when it does not."""
    try:
        response = http.pool.request("HEAD", url, headers=dict(headers))
    except urllib3.exceptions.HTTPError:
        return None
    size = response.headers.get("Content-Length", "")
    return int(size) if response.status == 200 and size.isascii() and size.isdigit() else None


def download(
    http: Http,
    url: str,
    headers: Mapping[str, str],
    out: IO[bytes],
    size: int,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Bring ``out``, which may hold the beginning already, to ``size`` bytes from ``url``; return the sha256 in hex.

    ``out`` is open for reading and writing. At most one byte more than ``size`` is read; the caller
    compares the digest. ``progress`` gets the number of bytes that came (negative: thrown away again).

    Raises:
        ArtifactGone, SourceUnavailable, SourceRefused, SourceRejected: see there; what came stays in ``out``.
    """
    task = _Download(http, url, headers, out, size, progress)
    task.take_stock()
    failures = 0
    while task.at < size:
        before = task.at
        try:
            why = task.request()
        except urllib3.exceptions.HTTPError as error:
            why = _why(error)
        if task.at < size:
            failures = 0 if task.at > before else failures
            _pause(http, failures, url, why)
            failures += 1
    return task.digest.hexdigest()


def copy_file(file: Path, out: IO[bytes], size: int, *, progress: Callable[[int], None] = lambda _: None) -> str:
    """Bring ``out``, which is empty, to the bytes of ``file``, at most ``size`` + 1; return their sha256 in hex.

    Raises:
        ArtifactGone: there is no such file. SourceUnavailable: it cannot be read.
    """
    digest, left = hashlib.sha256(), size + 1
    try:
        with file.open("rb") as stream:
            while left > 0 and (block := stream.read(min(BLOCK_SIZE, left))):
                digest.update(block)
                out.write(block)
                progress(len(block))
                left -= len(block)
    except FileNotFoundError as error:
        raise ArtifactGone(f"{file}: no such file") from error
    except OSError as error:
        raise SourceUnavailable(f"{file}: {error.strerror}") from error
    return digest.hexdigest()


@dataclass(slots=True)
class _Download:
    """One file on its way: ``at`` bytes of it are in ``out`` and in ``digest``."""

    http: Http
    url: str
    headers: Mapping[str, str]
    out: IO[bytes]
    size: int
    progress: Callable[[int], None]
    at: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take_stock(self) -> None:
        self.out.seek(0)
        while block := self.out.read(BLOCK_SIZE):
            self._count(block)
        if self.at > self.size:
            self.begin_again()

    def begin_again(self) -> None:
        self.progress(-self.at)
        self.out.seek(0)
        self.out.truncate()
        self.at, self.digest = 0, hashlib.sha256()

    def request(self) -> str:
        """Ask once for what is missing; return why it may have ended early."""
        wanted = {**self.headers, **({"Range": f"bytes={self.at}-"} if self.at else {})}
        response = self.http.pool.request("GET", self.url, headers=wanted, preload_content=False)
        try:
            if response.status not in {200, 206, 416}:
                _refuse(response.status, self.url)
                return f"status {response.status}"
            start = re.match(r"bytes ([0-9]+)-", response.headers.get("Content-Range", ""))
            if self.at and not (response.status == 206 and start and int(start[1]) == self.at):
                self.begin_again()
            if response.status == 416 or (response.status == 206 and not self.at):
                return f"status {response.status} from a server that cannot continue"
            while self.at <= self.size and (block := response.read(min(_BLOCK, self.size + 1 - self.at))):
                if self.http.stopped():
                    raise SourceUnavailable(f"{without_credentials(self.url)}: given up")
                self.out.write(block)
                self._count(block)
            return f"ended after {self.at} of {self.size} bytes"
        finally:
            # Not back to the pool: an unread rest must not meet the next request.
            response.close()

    def _count(self, block: bytes) -> None:
        self.digest.update(block)
        self.at += len(block)
        self.progress(len(block))


def _refuse(status: int, url: str) -> None:
    where = without_credentials(url)
    if status in {404, 410}:
        raise ArtifactGone(f"{where}: status {status}")
    if status in {401, 403}:
        raise SourceRefused(f"{where}: status {status}", hint="Check the credentials in the index's configuration.")
    if status not in RETRYABLE:
        raise (SourceRejected if status < 500 else SourceUnavailable)(f"{where}: status {status}")


def _pause(http: Http, attempt: int, url: str, why: str) -> None:
    if attempt + 1 >= _ATTEMPTS or http.stopped():
        raise SourceUnavailable(f"{without_credentials(url)}: {why}", hint="Try again later; what came is kept.")
    http.wait(min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0**attempt))


def _why(error: urllib3.exceptions.HTTPError) -> str:
    reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    return re.sub(r"//[^/@\s]*@", "//", f"{type(reason).__name__}: {reason}")[:300]


def _final(url: str, response: urllib3.BaseHTTPResponse) -> str:
    return urljoin(url, response.geturl() or url)
