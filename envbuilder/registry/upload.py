"""One blob into a repository: mount it if a neighbour has it, else begin an upload and send it.

Source: OCI distribution-spec 1.1, "Pushing Blobs"; registry.md 4. One streaming PUT is the default, since
chunks are broken in a different way at each large registry. Memory is flat at any size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.registry.answer import Answer
from envbuilder.registry.body import Body
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.chunks import Session, chunk_size_of, send_chunks
from envbuilder.registry.client import Call, Registry, RegistryClient
from envbuilder.registry.errors import BadAnswer, Denied, RateLimited, RegistryDown, Rejected, Unauthorized
from envbuilder.registry.profiles import (
    GENERIC,
    PROFILES,
    Profile,
    Way,
    as_way,
    compares_digests,
    profile_named,
    profile_of_answer,
    profile_of_host,
)
from envbuilder.store.target import NotFound, Opener

_log = logging.getLogger("envbuilder.registry")
#: Errors of an upload after which the blob may be there all the same, or a new upload may succeed
#: (distribution#2077, registry.md 4.1): a lost answer, a session that is gone, a concurrent writer.
_UNCERTAIN = (RegistryDown, RateLimited, NotFound, Rejected)
#: What a refusal of one way says about the next: a limit on one body wants chunks, no PUT with a body wants a PATCH.
_OTHER_WAY: dict[int, Way] = {413: "chunks", 405: "stream", 501: "stream"}


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """How uploads go where the machine's owner says so. chunk_size: bytes, 0: as the profile has it.

    way: None: one PUT, or what the profile or experience says.
    """

    way: Way | None = None
    chunk_size: int = 0


class Upload:
    """Uploads into ``repository``; thread-safe. What it learns about the registry goes into ``capabilities``."""

    def __init__(
        self,
        client: RegistryClient,
        registry: Registry,
        repository: str,
        *,
        capabilities: Capabilities,
        settings: UploadSettings,
    ) -> None:
        self._client, self._registry, self._repository = client, registry, repository
        self._capabilities, self._settings = capabilities, settings
        self._scopes = (f"repository:{repository}:pull,push",)
        self._mounts, self._mounted = True, False

    def distrust_mounts(self) -> bool:
        """Mount nothing any more if a mount was said to have succeeded; whether one was."""
        was, self._mounted = self._mounted, False
        self._mounts = self._mounts and not was
        return was

    @property
    def profile(self) -> Profile:
        """What to expect of this registry, by its name or by what it answered."""
        product = self._capabilities.get(str(self._registry.origin), "product")
        return profile_of_host(self._registry.host) or profile_named(product) or self._registry.product or GENERIC

    @property
    def way(self) -> Way:
        """How the next blob is sent: as told, as learned, as the profile says."""
        learned = as_way(self._capabilities.get(str(self._registry.origin), "upload"))
        return self._settings.way or learned or self.profile.way

    def blob(
        self, what: Descriptor, content: Opener, present: Callable[[Descriptor], bool], neighbours: Sequence[str] = ()
    ) -> None:
        """Store the blob; ``present`` asks whether it is there; ``neighbours`` may hold it and let it be mounted.

        Raises:
            DigestMismatch: the content is not ``what``. Otherwise what the registry's refusal means.
        """
        body = Body(content, what)
        try:
            self._blob(what, body, present, neighbours)
        finally:
            body.close()

    def _blob(
        self, what: Descriptor, body: Body, present: Callable[[Descriptor], bool], neighbours: Sequence[str]
    ) -> None:
        session: Session | None = None
        for neighbour in neighbours if self._mounts else ():
            mounted, session = self._mount(what, neighbour)
            if mounted:
                return
            if session:
                break
        attempt, waited_s, way, doubted = 0, 0.0, self.way, False
        while True:
            attempt += 1
            # What goes wrong here was tried again already, and nothing is to be cancelled.
            session = session or self._start()
            body.trusted = session.compares and not doubted
            try:
                self._send(session, way, what, body)
                if way != self.way:
                    self._capabilities.note(str(self._registry.origin), "upload", way)
                return
            except _UNCERTAIN as error:
                if body.failure is not None:
                    self._cancel(session)
                    raise body.failure from None
                if present(what):
                    return
                self._cancel(session)
                session = None
                # It may be our file that is not what it should be: next time we look for ourselves.
                doubted = doubted or (isinstance(error, Rejected) and error.status == 400)
                if other := self._other_way(error, way, what):
                    way = other
                    continue
                wanted_s = error.retry_after_s if isinstance(error, (RateLimited, RegistryDown)) else None
                pause_s = self._client.pause_s(attempt, waited_s, wanted_s)
                if pause_s is None or _is_final(error):
                    raise
                _log.debug("%s; again in %.1f s", error, pause_s)
                self._client.sleep(pause_s)
                waited_s += pause_s
            except BaseException:
                self._cancel(session)
                raise

    def _mount(self, what: Descriptor, neighbour: str) -> tuple[bool, Session | None]:
        """Whether the blob is mounted now; else its upload, if one was begun."""
        path = f"/v2/{self._repository}/blobs/uploads/?mount={quote(str(what.digest), safe='')}&from={quote(neighbour)}"
        scopes = (*self._scopes, f"repository:{neighbour}:pull")
        try:
            answer = self._registry.request(self._post(path, scopes, retry=False), (201, 202))
        except (Unauthorized, Denied, RateLimited, RegistryDown, Rejected, NotFound) as error:
            # Whatever goes wrong with a short cut, the long way is open (ggcr#1404, #1679).
            _log.debug("mount from %s: %s", neighbour, error)
            return False, None
        answer.finish()
        if answer.status == 201:
            self._capabilities.note(str(self._registry.origin), "mount", "yes")
            self._mounted = True
            return True, None
        return False, self._session_of(answer) if answer.headers.get("Location") else None

    def _start(self) -> Session:
        path = f"/v2/{self._repository}/blobs/uploads/"
        answer = self._registry.request(self._post(path, self._scopes, retry=True), (202,))
        answer.finish()
        return self._session_of(answer)

    def _post(self, path: str, scopes: tuple[str, ...], *, retry: bool) -> Call:
        url = self._registry.url(path)
        return Call(method="POST", url=url, scopes=scopes, headers={"Content-Length": "0"}, retry=retry)

    def _session_of(self, answer: Answer) -> Session:
        if not (location := answer.headers.get("Location")):
            raise BadAnswer(f"POST {answer.where}: want a Location, got none")
        if found := _more_telling(profile_of_answer(answer.headers), self._registry.product):
            self._capabilities.note(str(self._registry.origin), "product", found.name)
        return Session(
            registry=self._registry,
            client=self._client,
            scopes=self._scopes,
            location=self._registry.follow(location, answer.url),
            least_chunk=_count(answer.headers.get("OCI-Chunk-Min-Length", "")),
            compares=compares_digests(location),
        )

    def _send(self, session: Session, way: Way, what: Descriptor, body: Body) -> None:
        match way:
            case "put":
                session.put(what, body, 0)
            case "stream":
                if what.size:
                    session.patch(body, 0, what.size, ranged=False)
                session.put(what, body, what.size)
            case "chunks":
                profile = self.profile
                size = self._settings.chunk_size or profile.chunk_size
                send_chunks(
                    session, what, body, chunk_size_of(size, session.least_chunk), last_in_put=profile.last_in_put
                )

    def _other_way(self, error: EnvbuilderError, way: Way, what: Descriptor) -> Way | None:
        """The way that a refusal of this one suggests, if there is one to try; it is remembered once it works."""
        other = _OTHER_WAY.get(error.status) if isinstance(error, Rejected) else None
        if way != "put" or other is None or self._settings.way or not what.size:
            return None
        _log.debug("%s: %s; sending it as %s", self._registry.host, error, other)
        return other

    def _cancel(self, session: Session) -> None:
        try:
            session.cancel()
        except EnvbuilderError as error:
            _log.debug("cancel: %s", error)


def _more_telling(one: Profile | None, other: Profile | None) -> Profile | None:
    """The profile that stands first among all: many products are built on distribution and bear its marks too."""
    return min((each for each in (one, other) if each), key=PROFILES.index, default=None)


def _count(text: str) -> int:
    return int(text[:15]) if text.isascii() and text.isdecimal() else 0


def _is_final(error: EnvbuilderError) -> bool:
    """Whether a new upload would be refused for the same reason: too large, not supported, a bad name."""
    if not isinstance(error, Rejected):
        return False
    return error.status not in (400, 416) or bool({"SIZE_INVALID", "NAME_INVALID", "UNSUPPORTED"} & set(error.codes))
