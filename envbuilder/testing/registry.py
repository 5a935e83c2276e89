"""FakeRegistry: a small registry in this process that misbehaves on request.

It keeps to the distribution-spec until a habit is changed or a fault is set; a fault is a function
of a request and its right reply. What it was sent is in ``requests``, so that a test can assert that no
credential went where it must not. Real behaviour is tested against a real registry (servers.py).
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from envbuilder.digest import Descriptor, Digest, describe
from envbuilder.oci import media_types
from envbuilder.testing.habits import Habits
from envbuilder.testing.serving import HttpServer, Reply, Request
from envbuilder.testing.uploads import Uploads

_PATH = re.compile(
    r"/v2/(?P<name>.+)/(?:(?P<kind>manifests|blobs|referrers)/(?P<what>[^/]+)|blobs/uploads/(?P<session>[^/]*)|tags/list)\Z"
)
_RANGE = re.compile(r"bytes=(\d+)-(\d*)\Z")

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
    only: Callable[[Request], bool]
    fault: Fault
    times: int
    instead: bool

    def meets(self, request: Request) -> bool:
        return self.method == request.method and bool(self.path.search(request.path)) and self.only(request)


class FakeRegistry(Habits):
    """A registry on a free port of 127.0.0.1, in memory; a context manager. All repositories share their blobs.

    ``token``: whether requests need a bearer token of its own token server (``/token``); ``realm`` is
    where it says that server is. ``basic``: a ``name:password`` that is wanted instead.
    """

    def __init__(self, *, token: bool = False, basic: str = "", realm: str = "") -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.requests: list[Request] = []
        self.uploads = Uploads(self, self.blobs)
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._tokens: set[str] = set()
        self._made = 0
        self._server = HttpServer(self.answer)
        self.host = self._server.host
        self.url = self.uploads.url = f"http://{self.host}"
        self.token, self.basic = token, basic
        self.realm = realm or f"{self.url}/token"

    def fault(
        self,
        method: str,
        path: str,
        fault: Fault,
        *,
        times: int = 1_000_000,
        only: Callable[[Request], bool] = lambda _request: True,
        instead: bool = False,
    ) -> None:
        """Let the next ``times`` requests of ``method`` whose path matches the pattern ``path`` meet ``fault``.

        ``only``: those of them for which it is true. ``instead``: of the right answer, so that nothing is stored.
        """
        with self._lock:
            self._rules.append(_Rule(method, re.compile(path), only, fault, times, instead))

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

    def tags(self, repository: str) -> list[str]:
        """The tags of a repository, sorted."""
        return sorted(tag for name, tag in self.manifests if name == repository and not tag.startswith("sha256:"))

    def __enter__(self) -> FakeRegistry:  # noqa: PYI034  # typing.Self is of Python 3.11
        self._server.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()

    def answer(self, request: Request) -> Reply:
        """The reply to ``request``, faults and all."""
        with self._lock:
            self.requests.append(request)
            faults = [rule for rule in self._rules if rule.times > 0 and rule.meets(request)]
            for rule in faults:
                rule.times -= 1
            stands = any(rule.instead for rule in faults)
            refusal = self._refusal(request) if stands else None
            reply = refusal or (Reply() if stands else self._right(request))
        for rule in faults:
            if refusal is None or not rule.instead:
                reply = rule.fault(request, reply)
        return reply

    def _right(self, request: Request) -> Reply:
        if request.path == "/token":
            return self._token()
        if refusal := self._refusal(request):
            return refusal
        match = _PATH.match(request.path.removeprefix(self.upload_prefix))
        if not match:
            return Reply(status=200 if request.path == "/v2/" else 404)
        name, what = match["name"], match["what"] or ""
        if match["session"] is not None:
            session = match["session"]
            return self.uploads.session(request, name, session) if session else self.uploads.start(request, name)
        if request.method == "HEAD" and not self.head:
            return refuse(405, "UNSUPPORTED")(request, Reply())
        if request.method == "DELETE":
            return self._delete(request, name, what)
        match match["kind"]:
            case "manifests":
                return self._manifest(request, name, what)
            case "blobs":
                return self._blob(request, what)
            case "referrers":
                return self._referrers(request, name, what)
            case _:
                return self._tags(request, name)

    def _refusal(self, request: Request) -> Reply | None:
        """The 401 of a request without the authorization that is wanted here."""
        if request.path == "/token":
            return None
        sent = request.headers.get("authorization", "")
        if self.basic and sent != "Basic " + base64.b64encode(self.basic.encode()).decode():
            return Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="fake"'})
        if self.token and sent.removeprefix("Bearer ") not in self._tokens:
            match = _PATH.match(request.path)
            scope = f"repository:{match['name']}:pull" if match else ""
            challenge = f'Bearer realm="{self.realm}",service="fake",scope="{scope}"'
            return Reply(status=401, headers={"WWW-Authenticate": challenge})
        return None

    def _token(self) -> Reply:
        self._made += 1
        token = f"token-{self._made}"
        self._tokens.add(token)
        return Reply(body=json.dumps({"token": token, "expires_in": 300}).encode())

    def _manifest(self, request: Request, name: str, tag: str) -> Reply:
        if request.method == "PUT":
            return self._put_manifest(request, name, tag)
        if (name, tag) not in self.manifests:
            return refuse(404, "MANIFEST_UNKNOWN")(request, Reply())
        media_type, data = self.manifests[name, tag]
        return Reply(headers={"Content-Type": media_type, "Docker-Content-Digest": str(Digest.of(data))}, body=data)

    def _put_manifest(self, request: Request, name: str, tag: str) -> Reply:
        what = describe(request.body, request.headers.get("content-type", ""))
        if what.size > self.max_manifest:
            return refuse(413, "SIZE_INVALID")(request, Reply())
        if tag.startswith("sha256:") and tag != str(what.digest):
            return refuse(400, "DIGEST_INVALID")(request, Reply())
        if self.immutable and self.manifests.get((name, tag), ("", request.body))[1] != request.body:
            return refuse(400, "TAG_INVALID", f"the tag {tag} is immutable and exists already")(request, Reply())
        self.add_manifest(name, tag, request.body, what.media_type)
        headers = {"Docker-Content-Digest": str(what.digest), "Location": f"/v2/{name}/manifests/{what.digest}"}
        subject = _subject(request.body)
        if subject and (self.referrers or self.confirms_subject):
            headers["OCI-Subject"] = subject
        return Reply(status=201, headers=headers)

    def _blob(self, request: Request, digest: str) -> Reply:
        if digest not in self.blobs:
            return refuse(404, "BLOB_UNKNOWN")(request, Reply())
        data = self.blobs[digest]
        match = _RANGE.match(request.headers.get("range", ""))
        if not match or not self.ranges:
            return Reply(body=data)
        if int(match[1]) >= len(data):
            return Reply(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        start, end = int(match[1]), min(int(match[2] or len(data) - 1), len(data) - 1)
        headers = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
        return Reply(status=206, headers=headers, body=data[start : end + 1])

    def _delete(self, request: Request, name: str, what: str) -> Reply:
        is_tag = (name, what) in self.manifests and not what.startswith("sha256:")
        if not self.delete or (is_tag and not self.delete_tags):
            return refuse(405, "UNSUPPORTED")(request, Reply())
        if "/blobs/" in request.path:
            return Reply(status=202 if self.blobs.pop(what, None) is not None else 404)
        gone = [key for key, (_, data) in self.manifests.items() if key[0] == name and str(Digest.of(data)) == what]
        for key in [(name, what)] if is_tag else gone:
            del self.manifests[key]
        return Reply(status=202) if is_tag or gone else refuse(404, "MANIFEST_UNKNOWN")(request, Reply())

    def _tags(self, request: Request, name: str) -> Reply:
        tags = self.tags(name)
        if not any(repository == name for repository, _ in self.manifests):
            return refuse(404, "NAME_UNKNOWN")(request, Reply())
        headers = {"Content-Type": "application/json"}
        if self.paged:
            last, most = request.query.get("last", [""])[0], request.query.get("n", [""])[0]
            left = [tag for tag in tags if tag > last]
            tags = left[: int(most)] if most else left
            if len(left) > len(tags) > 0:
                headers["Link"] = f'</v2/{name}/tags/list?n={most}&last={tags[-1]}>; rel="next"'
        return Reply(headers=headers, body=json.dumps({"name": name, "tags": tags}).encode())

    def _referrers(self, request: Request, name: str, digest: str) -> Reply:
        if not self.referrers:
            return Reply(status=404)
        wanted = request.query.get("artifactType", [""])[0]
        found: dict[str, dict[str, Any]] = {}
        for (repository, _), (media_type, data) in self.manifests.items():
            if repository == name and _subject(data) == digest:
                value, what = json.loads(data), describe(data, media_type)
                kind = value.get("artifactType") or value.get("config", {}).get("mediaType", "")
                extra = {"artifactType": kind, "annotations": value.get("annotations", {})}
                found[str(what.digest)] = {**what.to_json(), **{key: text for key, text in extra.items() if text}}
        chosen = [item for item in found.values() if not wanted or item.get("artifactType") == wanted]
        index = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": chosen}
        headers = {"Content-Type": media_types.OCI_INDEX, **({"OCI-Filters-Applied": "artifactType"} if wanted else {})}
        return Reply(headers=headers, body=json.dumps(index).encode())


def _subject(manifest: bytes) -> str:
    """The digest of the subject that a manifest names, or ""; a test may store anything as a manifest."""
    try:
        return str(json.loads(manifest)["subject"]["digest"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
