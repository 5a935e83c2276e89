"""Real servers for tests: Debian's docker-registry in several configurations, and a token server.

One program and one file of YAML a variant (registry.md 10). The packaged config.yml is never
used: it turns on htpasswd with a path that is a directory.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from envbuilder import proc
from envbuilder.errors import HostError

_LISTENING = re.compile(rb"listening on (127\.0\.0\.1:\d+)")
_START_TIMEOUT_S = 15.0
#: Seconds that distribution 2.8 and 3 take a token after its end (registry.md 7.6).
LEEWAY_S = 60
#: Names that a server's certificate of the tests is for (RFC 6761: nobody has them).
NAMES = ("localhost", "registry.test", "auth.registry.test", "storage.test", "registry.storage.test", "evil.test")
#: The only user of the htpasswd and token variants; bcrypt of cost 5, as `htpasswd -Bbn` makes it.
USER, PASSWORD = "alice", "secret"  # of test servers only
_HTPASSWD = "alice:$2y$05$tGSt2rdHsNXmQ7hcbUqTZuBzgceqmZFtqIExAMnaoxs227wgd79AO\n"


class ServerNotStarted(HostError):
    """A server of the tests is not installed or did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRegistry:
    """A registry that answers at ``host`` (``127.0.0.1:PORT``); its files are below ``directory``."""

    host: str
    directory: Path
    process_id: int
    token_url: str = ""


@contextlib.contextmanager
def docker_registry(
    directory: Path,
    *,
    auth: Literal["", "htpasswd", "token"] = "",
    tls: bool = False,
    mutual: bool = False,
    address: str = "127.0.0.1:0",
    realm: str = "",
    token_life_s: int = 300,
    token_ends_s: int | None = None,
    storage: Mapping[str, Any] | None = None,
    redirect_to: str = "",
    mirror_of: str = "",
    program: str | Path = "docker-registry",
) -> Iterator[RunningRegistry]:
    """Start docker-registry over the file system below ``directory``; stop it at the end.

    With ``tls`` its CA is ``ca.crt`` there; with ``mutual`` it wants ``client.cert`` and ``client.key`` besides.
    ``realm``: what it says its token server's URL is, when that is reached by another name.
    ``storage``: other than files (storage.py). ``redirect_to``: the URL whose host readers of blobs are sent to.
    ``mirror_of``: the host that it is a pull-through cache of.
    ``program``: another build of the same server, such as ``registry`` of distribution 3.

    Raises:
        ServerNotStarted: it is not installed or says why it does not run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "version": 0.1,
        "log": {"level": "info", "accesslog": {"disabled": True}},
        "storage": storage
        or {
            "filesystem": {"rootdirectory": str(directory / "data"), "maxthreads": 100},
            "delete": {"enabled": True},
        },
        "http": {"addr": address},
    }
    if redirect_to:
        config["middleware"] = {"storage": [{"name": "redirect", "options": {"baseurl": redirect_to}}]}
    if mirror_of:
        config["proxy"] = {"remoteurl": f"http://{mirror_of}"}
    if tls:
        make_certificates(directory)
        files = {"certificate": str(directory / "server.crt"), "key": str(directory / "server.key")}
        config["http"]["tls"] = {**files, "clientcas": [str(directory / "ca.crt")] if mutual else []}
    url = ""
    with contextlib.ExitStack() as stack:
        if auth == "htpasswd":
            (directory / "htpasswd").write_text(_HTPASSWD)
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(directory / "htpasswd")}}
        elif auth == "token":
            url = stack.enter_context(token_server(directory, life_s=token_life_s, ends_s=token_ends_s))
            config["auth"] = {
                "token": {
                    "realm": realm or url,
                    "service": "test-registry",
                    "issuer": "test-issuer",
                    "rootcertbundle": str(directory / "token.crt"),
                }
            }
        running = stack.enter_context(_running(directory, config, program))
        yield replace(running, token_url=url)


@contextlib.contextmanager
def _running(directory: Path, config: dict[str, Any], program: str | Path) -> Iterator[RunningRegistry]:
    found = shutil.which(program)
    if found is None:
        raise ServerNotStarted(f"{program}: not found", hint="Install Debian's docker-registry.")
    # JSON is YAML.
    (directory / "config.yml").write_text(json.dumps(config))
    with (directory / "log").open("wb") as log:
        # Nothing of this host's environment: its S3 driver panics over AWS_CA_BUNDLE.
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(directory)}
        words: list[str | Path] = [found, "serve", directory / "config.yml"]
        process = proc.spawn(words, stdout=log.fileno(), stderr=log.fileno(), env=environ)
    try:
        host = _wait_for_host(directory / "log", process)
        yield RunningRegistry(host=host, directory=directory, process_id=process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_for_host(log: Path, process: Any) -> str:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if match := _LISTENING.search(log.read_bytes()):
            return match[1].decode()
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise ServerNotStarted(f"docker-registry: did not start: {log.read_text(errors='replace')[-2000:]}")


def make_certificates(directory: Path) -> None:
    """A CA (``ca.crt``), a server's certificate for this machine (``server.*``) and a client's (``client.*``)."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    authority: list[str | Path] = [
        "-keyout",
        directory / "ca.key",
        "-out",
        directory / "ca.crt",
        "-subj",
        "/CN=test CA",
    ]
    proc.run(["openssl", "req", "-x509", "-days", "30", *curve, *authority])
    (directory / "san.cnf").write_text(f"subjectAltName={','.join(f'DNS:{name}' for name in NAMES)},IP:127.0.0.1\n")
    for name, certificate in (("server", "server.crt"), ("client", "client.cert")):
        request: list[str | Path] = [
            "-keyout",
            directory / f"{name}.key",
            "-out",
            directory / f"{name}.csr",
            "-subj",
            f"/CN={name}",
        ]
        proc.run(["openssl", "req", *curve, *request])
        signer: list[str | Path] = [
            "-CA",
            directory / "ca.crt",
            "-CAkey",
            directory / "ca.key",
            "-CAcreateserial",
            "-days",
            "30",
        ]
        signed: list[str | Path] = ["-in", directory / f"{name}.csr", "-out", directory / certificate]
        proc.run(["openssl", "x509", "-req", *signer, *signed, "-extfile", directory / "san.cnf"])


@contextlib.contextmanager
def token_server(directory: Path, *, life_s: int = 300, ends_s: int | None = None) -> Iterator[str]:
    """A token server on a free port; its URL. ``token.crt`` in ``directory`` is what a registry must trust.

    Gives pull to everyone and push to ``USER``. ``ends_s``: seconds after which a registry refuses the token, whatever
    ``life_s`` says of it: distribution goes by the time in it, with a leeway.
    """
    key, certificate = directory / "token.key", directory / "token.crt"
    subject = ["-subj", "/CN=tok", "-days", "30"]
    proc.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", key, "-out", certificate]
    )
    pem = certificate.read_text()
    chain = "".join(pem.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0].split())
    exp_s = life_s if ends_s is None else ends_s - LEEWAY_S
    basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
            pass

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            sent = self.headers.get("Authorization")
            granted = sent == basic
            body = b"{}" if sent and not granted else _token(query, key, chain, life_s, exp_s, may_push=granted)
            self.send_response(401 if sent and not granted else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
    finally:
        server.shutdown()
        server.server_close()


def _token(query: dict[str, list[str]], key: Path, chain: str, life_s: int, exp_s: int, *, may_push: bool) -> bytes:
    access = []
    for scope in " ".join(query.get("scope", [])).split():
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        granted = [action for action in actions.split(",") if may_push or action == "pull"]
        access.append({"type": kind, "name": name, "actions": granted})
    now = int(time.time())
    claims = {"iss": "test-issuer", "aud": query["service"][0], "sub": "", "iat": now, "nbf": now - 10}
    claims |= {"exp": now + exp_s, "jti": str(time.monotonic_ns()), "access": access}
    head = {"typ": "JWT", "alg": "RS256", "x5c": [chain]}
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    signature = proc.run(["openssl", "dgst", "-sha256", "-sign", key], stdin=signed).stdout
    token = (signed + b"." + _encoded(signature)).decode()
    return json.dumps({"token": token, "expires_in": life_s}).encode()


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
