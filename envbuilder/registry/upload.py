"""One blob into a repository: mount it if a neighbour has it, else POST and one streaming PUT.

Source: OCI distribution-spec 1.1, "Pushing Blobs"; registry.md 4. Chunked PATCH is broken in a
different way at each large registry, so it is not the default. Memory is flat at any size.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, cast
from urllib.parse import quote

from envbuilder.digest import Descriptor, verifying
from envbuilder.errors import EnvbuilderError
from envbuilder.registry.client import Call, Registry, RegistryClient
from envbuilder.registry.errors import BadAnswer, Denied, RateLimited, RegistryDown, Rejected, Unauthorized
from envbuilder.store.target import NotFound, Opener

_log = logging.getLogger("envbuilder.registry")
#: Errors of an upload after which the blob may be there all the same, or a new upload may succeed
#: (distribution#2077, registry.md 4.1): a lost answer, a session that is gone, a concurrent writer.
_UNCERTAIN = (RegistryDown, RateLimited, NotFound, Rejected)


class Upload:
    """Uploads into ``repository``; thread-safe, keeps nothing between blobs."""

    def __init__(self, client: RegistryClient, registry: Registry, repository: str, mount_from: Sequence[str]) -> None:
        self._client, self._registry, self._repository = client, registry, repository
        self._mount_from = tuple(name for name in mount_from if name != repository)
        self._scopes = (f"repository:{repository}:pull,push",)

    def blob(self, what: Descriptor, content: Opener, present: Callable[[Descriptor], bool]) -> None:
        """Store the blob; ``present`` asks whether it is there.

        Raises:
            DigestMismatch: the content is not ``what``. Otherwise what the registry's refusal means.
        """
        body = _Body(content, what)
        location = ""
        for neighbour in self._mount_from:
            mounted, location = self._mount(what, neighbour)
            if mounted:
                return
            if location:
                break
        attempt, waited_s = 0, 0.0
        while True:
            attempt += 1
            # What goes wrong here was tried again already, and nothing is to be cancelled.
            location = location or self._start()
            try:
                self._put(location, what, body)
                return
            except _UNCERTAIN as error:
                if body.failure is not None:
                    self._cancel(location)
                    raise body.failure from None
                if present(what):
                    return
                self._cancel(location)
                location = ""
                wanted_s = error.retry_after_s if isinstance(error, RateLimited) else None
                pause_s = self._client.pause_s(attempt, waited_s, wanted_s)
                if pause_s is None or _is_final(error):
                    raise
                _log.debug("%s; again in %.1f s", error, pause_s)
                self._client.sleep(pause_s)
                waited_s += pause_s
            except BaseException:
                self._cancel(location)
                raise

    def _mount(self, what: Descriptor, neighbour: str) -> tuple[bool, str]:
        """Whether the blob is mounted now; else where its upload goes on, if an upload was begun."""
        path = f"/v2/{self._repository}/blobs/uploads/?mount={quote(str(what.digest), safe='')}&from={quote(neighbour)}"
        scopes = (*self._scopes, f"repository:{neighbour}:pull")
        try:
            call = Call(
                method="POST", url=self._registry.url(path), scopes=scopes, headers={"Content-Length": "0"}, retry=False
            )
            answer = self._registry.request(call, (201, 202))
        except (Unauthorized, Denied, RateLimited, RegistryDown, Rejected, NotFound) as error:
            # Whatever goes wrong with a short cut, the long way is open (ggcr#1404, #1679).
            _log.debug("mount from %s: %s", neighbour, error)
            return False, ""
        answer.finish()
        if answer.status == 201:
            return True, ""
        location = answer.headers.get("Location")
        return False, self._registry.follow(location, answer.url) if location else ""

    def _start(self) -> str:
        url = self._registry.url(f"/v2/{self._repository}/blobs/uploads/")
        call = Call(method="POST", url=url, scopes=self._scopes, headers={"Content-Length": "0"})
        answer = self._registry.request(call, (202,))
        answer.finish()
        if not (location := answer.headers.get("Location")):
            raise BadAnswer(f"POST {answer.where}: want a Location, got none")
        return self._registry.follow(location, answer.url)

    def _put(self, location: str, what: Descriptor, body: _Body) -> None:
        # The state in the query is opaque: the digest is appended, nothing is rebuilt.
        url = location + ("&" if "?" in location else "?") + "digest=" + quote(str(what.digest), safe="")
        call = Call(
            method="PUT",
            url=url,
            scopes=self._scopes,
            headers={"Content-Type": "application/octet-stream"},
            body=body.open,
            size=what.size,
            retry=False,
            answer_timeout_s=self._client.transport.settings.upload_answer_timeout_s,
        )
        if not what.size:
            # An empty body is never read by the HTTP library, so nothing would check that it is empty.
            with body.open() as stream:
                stream.read()
        answer = self._registry.request(call, (200, 201, 204))
        answer.finish()

    def _cancel(self, location: str) -> None:
        if location:
            try:
                call = Call(method="DELETE", url=location, scopes=self._scopes, retry=False)
                self._registry.request(call, range(200, 300)).finish()
            except EnvbuilderError as error:
                _log.debug("cancel: %s", error)


class _Body:
    """The content as a verified body; remembers an error of its own, which no new upload would mend."""

    def __init__(self, content: Opener, what: Descriptor) -> None:
        self._content, self._what = content, what
        self.failure: Exception | None = None

    def open(self) -> BinaryIO:
        with self.noted():
            inner = verifying(self._content(), self._what, source=f"upload of {self._what.digest}")
        return cast("BinaryIO", _Noting(inner, self))

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


class _Noting(io.RawIOBase):
    def __init__(self, inner: BinaryIO, body: _Body) -> None:
        super().__init__()
        self._inner, self._body = inner, body

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        with self._body.noted():
            return self._inner.read(size)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def _is_final(error: EnvbuilderError) -> bool:
    """Whether a new upload would be refused for the same reason: too large, not supported, a bad name."""
    if not isinstance(error, Rejected):
        return False
    return error.status not in (400, 416) or bool({"SIZE_INVALID", "NAME_INVALID", "UNSUPPORTED"} & set(error.codes))
