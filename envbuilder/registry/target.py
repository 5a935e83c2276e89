"""RegistryTarget: a repository of a registry as a Target and RangeTarget.

Source: OCI distribution-spec 1.1. Every byte is hashed here; a header's digest is a hint.
"""

from __future__ import annotations

import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode

from envbuilder.digest import Descriptor, Digest, DigestMismatch, verifying
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, parse_document
from envbuilder.oci.reference import RegistryReference, check_tag
from envbuilder.registry.answer import Answer
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.client import Call, RegistryClient
from envbuilder.registry.download import Download, check_range, skip
from envbuilder.registry.errors import BadAnswer, RegistryDown, Rejected
from envbuilder.registry.known import KnownBlobs
from envbuilder.registry.offer import offer
from envbuilder.registry.redact import plain
from envbuilder.registry.referrers import RegistryReferrers
from envbuilder.registry.upload import Upload, UploadSettings
from envbuilder.store.pace import Pace
from envbuilder.store.target import NotFound, Opener, ShortRange

_log = logging.getLogger("envbuilder.registry")
#: Times in a row that a ranged read may break before we stop asking again.
_MAX_FRUITLESS = 4
#: Manifests kept, so that looking one up and then copying it is one request (Docker Hub counts them).
_KEPT_MANIFESTS = 32
#: Redirected locations of blobs kept; seconds that one is used, below what any registry signs them for.
_KEPT_LOCATIONS = 512
_LOCATION_LIFE_S = 120.0
_ACCEPT = ", ".join(media_types.MANIFEST_ACCEPT)
_DOCUMENTS = media_types.MANIFESTS | media_types.INDEXES


def _remade(reference: RegistryReference, client: RegistryClient, options: Mapping[str, Any]) -> RegistryTarget:
    return RegistryTarget(reference, client, **options)


class RegistryTarget(RegistryReferrers):
    """The repository that ``reference`` names; its tag and digest play no part. Thread-safe.

    writable: ask for the right to push from the start, so that a push needs one token.
    mount_from: repositories of the same registry that may hold blobs we push.
    known: what registries were seen to hold; ``has`` then answers from it, and ``forget`` undoes that.
    capabilities: what registries were seen to do. upload: how blobs are sent, when the machine's owner says so.
    upstream: the registry that this one is a mirror of, among others: told with every read as ``ns`` (containerd's
    convention, docs/hosts.md there; distribution-spec: Registry Proxying).
    """

    def __init__(
        self,
        reference: RegistryReference,
        client: RegistryClient,
        *,
        writable: bool = False,
        mount_from: Sequence[str] = (),
        known: KnownBlobs | None = None,
        capabilities: Capabilities | None = None,
        upload: UploadSettings | None = None,
        upstream: str = "",
    ) -> None:
        options = {"writable": writable, "mount_from": tuple(mount_from), "known": known, "upload": upload}
        self._made_of = (reference, client, options | {"capabilities": capabilities, "upstream": upstream})
        self._query = urlencode({"ns": upstream}) if upstream else ""
        self._name, self._repository = reference.name, reference.repository
        self._client, self._registry = client, client.registry(reference.host)
        self._origin = str(self._registry.origin)
        self._known, self._mount_from = known, tuple(mount_from)
        self._capabilities = capabilities or Capabilities()
        self._upload = Upload(
            client,
            self._registry,
            self._repository,
            capabilities=self._capabilities,
            settings=upload or UploadSettings(),
        )
        self._scopes = (f"repository:{self._repository}:{'pull,push' if writable else 'pull'}",)
        self._lock = threading.Lock()
        self._manifests: OrderedDict[Digest, bytes] = OrderedDict()
        self._locations: OrderedDict[Digest, tuple[str, float]] = OrderedDict()
        self._absent: set[Digest] = set()
        self._whole_answers = False

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes what it was made of: a mount's worker opens its own connections."""
        return _remade, self._made_of

    @property
    def name(self) -> str:
        return self._name

    @property
    def host(self) -> str:
        """Its registry."""
        return self._registry.origin.authority

    @property
    def pace(self) -> Pace:
        """The gate of this registry; all its repositories share it."""
        return self._registry.pace

    def open_ahead(self, count: int) -> None:
        """As of ``Registry.open_ahead``."""
        self._registry.open_ahead(count)

    def sibling(self, repository: str) -> RegistryTarget:
        """As of ``SiblingTarget``."""
        own, client, _ = self._made_of
        return RegistryTarget(RegistryReference(own.host, repository), client, capabilities=self._capabilities)

    def has(self, what: Descriptor) -> bool:
        # A manifest is asked for whatever is remembered: where it is, all that it names was when it was stored.
        is_document = what.media_type in _DOCUMENTS
        if self._known and not is_document and self._known.has(self._origin, self._repository, what.digest):
            return True
        found = self._head(what)
        with self._lock:
            # A push usually follows at once: it need not ask again.
            (self._absent.discard if found else self._absent.add)(what.digest)
        if found:
            self._note(what)
        return found

    def forget(self) -> bool:
        """Ask the registry anew from now on; whether anything was only remembered, or mounted on its word."""
        with self._lock:
            self._absent.clear()
        mounted = self._upload.distrust_mounts()
        remembered = self._known is not None and self._known.forget(self._origin, self._repository)
        return remembered or mounted

    def fetch(self, what: Descriptor) -> BinaryIO:
        if what.media_type in _DOCUMENTS:
            data = self._kept(what.digest)
            if data is None:
                data = self._manifest(str(what.digest))[0]
            return verifying(io.BytesIO(data), what, source=f"{self.name}: {what.digest}")
        answer = self._get_blob(what, "")
        return verifying(cast("BinaryIO", Download(self, what, answer)), what, source=f"{self.name}: {what.digest}")

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > what.size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, it has {what.size}")
        if not size:
            return b""
        fruitless = 0
        while True:
            answer = self._get_blob(what, f"bytes={offset}-{offset + size - 1}")
            try:
                data = self._range_of(answer, what, offset, size)
            except RegistryDown:
                self._forget_location(what)
                fruitless += 1
                if fruitless >= _MAX_FRUITLESS:
                    raise
                continue
            if len(data) != size:
                answer.close()
                raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, got {len(data)}")
            return data

    def fetch_parts(self, what: Descriptor, offset: int, sizes: Sequence[int]) -> Iterator[bytes]:
        size = sum(sizes)
        if offset < 0 or size <= 0 or offset + size > what.size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, it has {what.size}")
        answer = self._get_blob(what, f"bytes={offset}-{offset + size - 1}")
        try:
            self._to_range(answer, what, offset, size)
            for part in sizes:
                data = answer.read_exactly(part)
                if len(data) != part:
                    raise ShortRange(f"{self.name}: {what.digest}: want {part} bytes more, got {len(data)}")
                yield data
        except RegistryDown:
            self._forget_location(what)
            raise
        finally:
            answer.finish()

    def push(self, what: Descriptor, content: Opener) -> None:
        with self._lock:
            known_absent = what.digest in self._absent
            self._absent.discard(what.digest)
        if not known_absent and self._head(what):
            return
        if what.media_type in _DOCUMENTS:
            with verifying(content(), what, source=f"{self.name}: push of {what.digest}") as stream:
                data = stream.read()
            self._put_manifest(what, data, str(what.digest))
        else:
            self._upload.blob(what, content, self._head, self._neighbours(what))
        self._note(what)

    def lookup(self, tag: str) -> Descriptor:
        if not tag.startswith("sha256:"):
            check_tag(tag)
        data, media_type = self._manifest(str(Digest.parse(tag)) if tag.startswith("sha256:") else tag)
        return Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data))

    def tag(self, what: Descriptor, tag: str) -> None:
        with self.fetch(what) as stream:
            data = stream.read()
        self.push_tagged(what, data, tag)

    def push_tagged(self, what: Descriptor, data: bytes, tag: str) -> None:
        self._put_manifest(what, data, check_tag(tag))
        self._note(what)
        self._save()

    def is_tagged(self, what: Descriptor, tag: str) -> bool:
        call = self._call("HEAD", f"/v2/{self._repository}/manifests/{check_tag(tag)}", accept=_ACCEPT)
        try:
            answer = self._registry.request(call, (200,))
        except (NotFound, Rejected):
            return False
        answer.finish()
        if tagged := answer.headers.get("Docker-Content-Digest") == str(what.digest):
            self._note(what)
        return tagged

    def may_mount(self, what: Descriptor) -> bool:
        return bool(self._neighbours(what))

    def _neighbours(self, what: Descriptor) -> list[str]:
        """Where the blob may be mounted from: as told, and the last repository that was seen to hold it."""
        found = [*self._mount_from]
        # A product whose mounts were never seen to succeed is not asked on a mere memory.
        if self._known and self._upload.profile.mount:
            found += self._known.holders(self._origin, what.digest)[:1]
        return [name for name in dict.fromkeys(found) if name != self._repository]

    def _note(self, what: Descriptor) -> None:
        if self._known:
            self._known.note(self._origin, self._repository, [what.digest])

    def _save(self) -> None:
        if self._known:
            self._known.save(self._origin)

    def _head(self, what: Descriptor) -> bool:
        call = self._call("HEAD", self._path(what), accept=_ACCEPT if what.media_type in _DOCUMENTS else "")
        try:
            answer = self._registry.request(call, (200, 404, 405))
        except Rejected:
            return False
        except RegistryDown as down:
            # distribution 2.8 over files, whose disk was full when it wrote a blob's link, says so for ever: the blob
            # must be sent again. A registry that is in trouble refuses that, too.
            if down.status != 500 or what.media_type in _DOCUMENTS:
                raise
            return False
        answer.finish()
        if answer.status == 405:
            return self._get_works(what)
        # A stub of another size under our digest is no content of ours (zot#4427): push it again.
        length = answer.headers.get("Content-Length", str(what.size))
        return answer.status == 200 and length == str(what.size)

    def _get_works(self, what: Descriptor) -> bool:
        """For registries that refuse HEAD (registry.md 9, ECR): begin a GET and drop it."""
        try:
            answer = self._registry.request(self._call("GET", self._path(what), accept=_ACCEPT), (200,))
        except NotFound:
            return False
        answer.close()
        return True

    def _path(self, what: Descriptor) -> str:
        kind = "manifests" if what.media_type in _DOCUMENTS else "blobs"
        return f"/v2/{self._repository}/{kind}/{what.digest}"

    def _call(self, method: str, path: str, *, accept: str = "", byte_range: str = "") -> Call:
        headers = {}
        if accept:
            headers["Accept"] = accept
        if byte_range:
            headers["Range"] = byte_range
        if self._query:
            path += ("&" if "?" in path else "?") + self._query
        return Call(method=method, url=self._registry.url(path), scopes=self._scopes, headers=headers)

    def _manifest(self, name: str) -> tuple[bytes, str]:
        """Bytes and media type of the manifest that a tag or digest ``name`` names."""
        call = self._call("GET", f"/v2/{self._repository}/manifests/{name}", accept=_ACCEPT)
        answer, data = self._registry.whole(call, self._registry.request(call, (200,)), MAX_MANIFEST_SIZE)
        source = f"{self.name}: {name}"
        got = Digest.of(data)
        if name.startswith("sha256:") and got != Digest(name):
            raise DigestMismatch(source, Digest(name), len(data), got, len(data))
        said = answer.headers.get("Docker-Content-Digest", "")
        if said.startswith("sha256:") and said != str(got):
            _log.warning("%s: its header says %s, its bytes are %s; the bytes count", source, plain(said, 80), got)
        media_type = parse_document(data, source=source).media_type
        declared = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        if declared in _DOCUMENTS and declared != media_type:
            raise BadAnswer(f"{source}: want one media type, got {declared} as header and {media_type} inside")
        self._keep(got, data)
        return data, media_type

    def _put_manifest(self, what: Descriptor, data: bytes, name: str) -> None:
        call = Call(
            method="PUT",
            url=self._registry.url(f"/v2/{self._repository}/manifests/{name}"),
            scopes=(f"repository:{self._repository}:pull,push",),
            headers={"Content-Type": what.media_type},
            body=data,
            size=len(data),
        )
        answer = offer(self._registry, call, (200, 201, 202), self._client.sleep)
        answer.finish()
        said = answer.headers.get("Docker-Content-Digest", str(what.digest))
        if said.startswith("sha256:") and said != str(what.digest):
            raise BadAnswer(f"{self.name}: want {what.digest} stored, the registry says it stored {plain(said, 80)}")
        self._keep(what.digest, data)

    def _get_blob(self, what: Descriptor, byte_range: str) -> Answer:
        """An answer with the blob or a part: 200 or 206. Redirects are remembered, and forgotten when they fail."""
        call = self._call("GET", self._path(what), byte_range=byte_range)
        if known := self._location(what.digest):
            call_there = Call(method="GET", url=known, scopes=self._scopes, headers=call.headers, retry=False)
            try:
                return self._registry.request(call_there, (200, 206))
            except EnvbuilderError as error:  # expired, moved, away: the registry gives a new one
                _log.debug("%s: %s; asking the registry again", self.name, error)
                self._forget_location(what)
        answer = self._registry.request(call, (200, 206))
        if answer.url != call.url:
            with self._lock:
                self._locations[what.digest] = (answer.url, self._client.clock() + _LOCATION_LIFE_S)
                while len(self._locations) > _KEPT_LOCATIONS:
                    self._locations.popitem(last=False)
        return answer

    def _forget_location(self, what: Descriptor) -> None:
        with self._lock:
            self._locations.pop(what.digest, None)

    def _location(self, digest: Digest) -> str:
        url, until_s = self._locations.get(digest, ("", 0.0))
        return url if url and self._client.clock() < until_s else ""

    def _range_of(self, answer: Answer, what: Descriptor, offset: int, size: int) -> bytes:
        self._to_range(answer, what, offset, size)
        data = answer.read_exactly(size)
        answer.finish()
        return data

    def _to_range(self, answer: Answer, what: Descriptor, offset: int, size: int) -> None:
        """Bring ``answer`` to the first byte of the range that was asked for."""
        if answer.status == 206:
            check_range(answer, what, offset, size)
            return
        # 200 means "here is all of it" (RFC 9110, 14.2): take what we need and drop the rest.
        if not self._whole_answers:
            self._whole_answers = True
            _log.warning("%s: answers a Range with the whole blob: reading parts will be slow", self.name)
        skip(answer, offset)

    def resume(self, what: Descriptor, offset: int) -> Answer:
        """The rest of a blob from ``offset`` on, in an answer of 206; or all of it, in one of 200.

        Raises:
            RegistryDown, NotFound, ...: as any request.
        """
        answer = self._get_blob(what, f"bytes={offset}-")
        if answer.status == 206:
            check_range(answer, what, offset, what.size - offset)
        return answer

    def _kept(self, digest: Digest) -> bytes | None:
        with self._lock:
            return self._manifests.get(digest)

    def _keep(self, digest: Digest, data: bytes) -> None:
        with self._lock:
            self._manifests[digest] = data
            while len(self._manifests) > _KEPT_MANIFESTS:
                self._manifests.popitem(last=False)
