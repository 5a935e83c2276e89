"""Uploads of a fake registry: sessions, chunks, mounts. Source: OCI distribution-spec 1.1, "Pushing Blobs"."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from envbuilder.digest import Digest
from envbuilder.testing.habits import Habits
from envbuilder.testing.serving import Reply, Request

_CONTENT_RANGE = re.compile(r"(\d+)-(\d+)\Z")


@dataclass(slots=True)
class _Session:
    """What came so far. ``state`` changes with each chunk; ``first``: bytes of the first chunk."""

    data: bytes = b""
    chunks: int = 0
    first: int = 0


class Uploads:
    """The upload sessions of one registry; its ``url`` is set by it. The caller locks."""

    def __init__(self, habits: Habits, blobs: dict[str, bytes]) -> None:
        self.url = ""
        self._habits, self._blobs = habits, blobs
        self._sessions: dict[str, _Session] = {}
        self._made = 0

    @property
    def open(self) -> int:
        """Sessions that were begun and neither finished nor cancelled."""
        return len(self._sessions)

    def add(self, name: str) -> None:
        """Let a session of this ``name`` be open."""
        self._sessions[name] = _Session()

    def forget(self) -> None:
        """Lose every session, as a restarted registry may."""
        self._sessions.clear()

    def start(self, request: Request, repository: str) -> Reply:
        """Answer a POST: a mount, a whole blob, or a new session."""
        wanted = request.query.get("mount", [""])[0]
        if wanted and self._habits.mount == "fail":
            return Reply(status=500)
        if wanted and self._habits.mount == "accept" and wanted in self._blobs:
            return Reply(status=201, headers={"Location": f"/v2/{repository}/blobs/{wanted}"})
        if "digest" in request.query and self._habits.single_post:
            return self._store(request, request.body)
        self._made += 1
        self.add(str(self._made))
        headers = self._place(repository, str(self._made)) | {"Range": "0-0"}
        if self._habits.min_chunk:
            headers["OCI-Chunk-Min-Length"] = str(self._habits.min_chunk)
        return Reply(status=202, headers=headers)

    def session(self, request: Request, repository: str, name: str) -> Reply:
        """Answer what is asked of one session."""
        session = self._sessions.get(name)
        if session is None:
            return _refuse(404, "BLOB_UPLOAD_UNKNOWN")
        match request.method:
            case "GET":
                return Reply(status=204, headers=self._place(repository, name) | _range(0, len(session.data)))
            case "DELETE":
                del self._sessions[name]
                return Reply(status=204)
            case "PATCH":
                return self._patch(request, repository, name, session)
            case _:
                return self._put(request, name, session)

    def _put(self, request: Request, name: str, session: _Session) -> Reply:
        if request.query.get(self._habits.state) != [_state(session)]:
            return _refuse(400, "BLOB_UPLOAD_INVALID")
        if 0 < self._habits.max_put < len(request.body):
            return _refuse(413, "SIZE_INVALID")
        reply = self._store(request, session.data + request.body)
        if reply.status == 201:
            del self._sessions[name]
        return reply

    def _patch(self, request: Request, repository: str, name: str, session: _Session) -> Reply:
        habits = self._habits
        if not habits.chunks:
            return _refuse(405, "UNSUPPORTED")
        if request.query.get(self._habits.state) != [_state(session)]:
            return _refuse(404, "BLOB_UPLOAD_INVALID")
        if 0 < habits.max_patch < len(request.body):
            return _refuse(416, "BLOB_UPLOAD_INVALID")
        if text := request.headers.get("content-range", ""):
            match = _CONTENT_RANGE.match(text)
            if not match or int(match[2]) - int(match[1]) + 1 != len(request.body):
                return _refuse(400, "BLOB_UPLOAD_INVALID")
            if habits.ordered and int(match[1]) != len(session.data):
                return Reply(status=416, headers=self._place(repository, name) | _range(0, len(session.data)))
        start = len(session.data)
        session.data = request.body if habits.lossy_patch else session.data + request.body
        session.chunks += 1
        session.first = session.first or len(request.body)
        said = {"all": (0, len(session.data)), "first": (0, session.first), "chunk": (start, len(session.data))}
        return Reply(
            status=habits.patch_status, headers=self._place(repository, name) | _range(*said[habits.patch_range])
        )

    def _store(self, request: Request, data: bytes) -> Reply:
        digest = request.query.get("digest", [""])[0]
        if not data and not self._habits.empty_blobs:
            return _refuse(500, "UNKNOWN")
        if str(Digest.of(data)) != digest:
            return _refuse(400, "DIGEST_INVALID")
        self._blobs[digest] = data
        return Reply(status=201, headers={"Docker-Content-Digest": digest})

    def _place(self, repository: str, name: str) -> dict[str, str]:
        habits = self._habits
        base = "" if habits.relative_locations else self.url
        state = _state(self._sessions[name]).replace("/", "%2F")
        place = f"{base}{habits.upload_prefix}/v2/{repository}/blobs/uploads/{name}"
        return {"Location": f"{place}?{habits.state}={state}"}


def _state(session: _Session) -> str:
    """The opaque word that must come back with the next request; each chunk makes the one before stale."""
    return f"secret/state-{session.chunks}" if session.chunks else "secret/state"


def _range(start: int, end: int) -> dict[str, str]:
    return {"Range": f"{start}-{max(start, end - 1)}"}


def _refuse(status: int, code: str) -> Reply:
    return Reply(status=status, body=json.dumps({"errors": [{"code": code, "message": ""}]}).encode())
