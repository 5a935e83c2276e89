"""An upload session, and a blob sent to it in chunks that can be taken up where they broke off.

Source: OCI distribution-spec 1.1, "Pushing a blob in chunks"; registry.md 4.2. A chunk whose answer was lost is
never sent again unasked: distribution 2.8 appends a replay and says 202. The session is asked for its length
first, and the digest at the closing PUT decides.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from envbuilder.digest import Descriptor
from envbuilder.registry.body import Body
from envbuilder.registry.client import Call, Registry, RegistryClient
from envbuilder.registry.errors import BadAnswer, RateLimited, RegistryDown, Rejected

_log = logging.getLogger("envbuilder.registry")
_RANGE = re.compile(r"(?:bytes[= ])?(\d{1,18})-(\d{1,18})\Z")
#: Bytes that a registry may ask a chunk to have at least; regclient's cap (registry.md 4.1).
MAX_CHUNK = 1 << 30
#: Times in a row that a session may break without having taken a byte more.
_MAX_FRUITLESS = 4


@dataclass(slots=True, kw_only=True)
class Session:
    """An upload that was begun. ``location`` moves with each answer: a stale one is refused.

    least_chunk: bytes that the registry asks for (OCI-Chunk-Min-Length), 0: it does not say.
    compares: the registry is known to compare the digest when the upload is closed.
    """

    registry: Registry = field(repr=False)
    client: RegistryClient = field(repr=False)
    scopes: tuple[str, ...]
    location: str = field(repr=False)
    least_chunk: int = 0
    compares: bool = False

    def patch(self, body: Body, offset: int, size: int, *, ranged: bool = True) -> None:
        """Send bytes ``offset`` to ``offset + size``; ``ranged``: say so, else it is all there is to come."""
        headers = {"Content-Type": "application/octet-stream"}
        if ranged:
            headers["Content-Range"] = f"{offset}-{offset + size - 1}"
        # 201 and 204: ECR and others (containers-roadmap#2831).
        self._send("PATCH", self.location, headers, body, offset, size, (200, 201, 202, 204))

    def put(self, what: Descriptor, body: Body, offset: int) -> None:
        """Close the upload with what is left from ``offset`` on."""
        # The state in the query is opaque: the digest is appended, nothing is rebuilt.
        url = self.location + ("&" if "?" in self.location else "?") + "digest=" + quote(str(what.digest), safe="")
        headers = {"Content-Type": "application/octet-stream"}
        if 0 < offset < what.size:
            headers["Content-Range"] = f"{offset}-{what.size - 1}"
        self._send("PUT", url, headers, body, offset, what.size - offset, (200, 201, 204))

    def received(self) -> int:
        """Bytes that the registry says it has; its new location is taken over.

        Raises:
            NotFound: the session is gone.
        """
        call = Call(method="GET", url=self.location, scopes=self.scopes, retry=True)
        answer = self.registry.request(call, (200, 202, 204))
        answer.finish()
        self._move(answer.headers.get("Location"), answer.url)
        match = _RANGE.match(answer.headers.get("Range", ""))
        # "0-0" is one byte or none (registry.md 4.1): a wrong guess is found out by the digest.
        return int(match[2]) + 1 if match and int(match[2]) else 0

    def cancel(self) -> None:
        """Let the registry forget the upload (distribution-spec main, end-14)."""
        call = Call(method="DELETE", url=self.location, scopes=self.scopes, retry=False)
        self.registry.request(call, range(200, 300)).finish()

    def _send(
        self, method: str, url: str, headers: dict[str, str], body: Body, offset: int, size: int, accept: Sequence[int]
    ) -> None:
        call = Call(
            method=method,
            url=url,
            scopes=self.scopes,
            headers=headers,
            body=(lambda: body.part(offset, size)) if size or not offset else b"",
            size=size,
            retry=False,
            answer_timeout_s=self.client.transport.settings.upload_answer_timeout_s,
        )
        if not size and not offset:
            body.part(0, 0)
        answer = self.registry.request(call, accept)
        answer.finish()
        if method == "PATCH":
            self._move(answer.headers.get("Location"), answer.url)

    def _move(self, location: str | None, base: str) -> None:
        if location:
            self.location = self.registry.follow(location, base)


def chunk_size_of(wanted: int, least: int) -> int:
    """Bytes of a chunk: what we want, or what the registry asks for at least.

    Raises:
        BadAnswer: it asks for more than ``MAX_CHUNK``.
    """
    if least > MAX_CHUNK:
        raise BadAnswer(f"upload: want chunks of at most {MAX_CHUNK} bytes, the registry asks for {least}")
    return max(wanted, least, 1)


def send_chunks(session: Session, what: Descriptor, body: Body, chunk_size: int, *, last_in_put: bool = False) -> None:
    """Send the blob to ``session`` and close it; after a lost connection at most one chunk goes again.

    Raises:
        what the registry's refusal means; NotFound when it lost the session.
    """
    acknowledged, fruitless, waited_s = 0, 0, 0.0
    offset = 0
    while offset < what.size:
        size = min(chunk_size, what.size - offset)
        if last_in_put and offset + size == what.size:
            break
        try:
            session.patch(body, offset, size)
        except (RegistryDown, RateLimited, Rejected) as error:
            # 416: it has another length than we think; what it has decides where to go on.
            if body.failure is not None or (isinstance(error, Rejected) and error.status != 416):  # HTTP
                raise
            fruitless += 1
            wanted_s = error.retry_after_s if isinstance(error, (RateLimited, RegistryDown)) else None
            pause_s = session.client.pause_s(fruitless, waited_s, wanted_s)
            if pause_s is None or fruitless > _MAX_FRUITLESS:
                raise
            session.client.sleep(pause_s)
            waited_s += pause_s
            received = session.received()
            _log.debug("%s; the registry has %d bytes of %s", error, received, what.digest)
            if received > offset + size:
                raise
            if received > offset:
                fruitless = 0
            # Some count wrong (ECR, Aliyun, old zot): what was acknowledged is there, the digest decides. But where
            # nothing may follow what was acknowledged, less was kept than that.
            is_behind = isinstance(error, Rejected) and received < offset
            offset = acknowledged = received if is_behind else max(acknowledged, received)
            continue
        fruitless = 0
        offset = acknowledged = offset + size
    session.put(what, body, offset)
