"""What a registry turns out to do, asked politely: reads only, unless an upload is to be tried and cancelled.

Each finding stands for itself: one that fails says why and the next is asked all the same.
"""

from __future__ import annotations

import email.utils
import importlib.metadata
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import urllib3

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, parse_document
from envbuilder.registry.answer import Answer
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.client import Call, Registry
from envbuilder.registry.profiles import GENERIC, profile_of_answer, profile_of_host

#: Seconds that two clocks may differ before tokens and signed URLs begin to fail (the leeway of distribution's tokens).
MAX_SKEW_S = 60.0
_ANY = range(200, 500)
#: Indexes within each other that are looked into: what comes is not verified here, and could go on for ever.
_MAX_DEPTH = 4
_ACCEPT = {"Accept": ", ".join(media_types.MANIFEST_ACCEPT)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found. ``ok``: None where neither answer is wrong."""

    name: str
    value: str
    ok: bool | None = None


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """Questions to one ``registry``; findings gather in ``found``. ``now_s``: seconds since the epoch."""

    registry: Registry
    capabilities: Capabilities
    now_s: Callable[[], float]
    found: list[Finding] = field(default_factory=list)

    def host(self) -> None:
        """Whether it answers, which product it is, how far its clock is from ours."""
        with self._asking("answers"):
            answer = self._ask("GET", "/v2/")
            self._note("answers", f"{self.registry.origin}, status {answer.status}", ok=answer.status == 200)
            found = self.registry.product or profile_of_answer(answer.headers)
            profile = profile_of_host(self.registry.host) or found or GENERIC
            self._note("product", "; ".join([profile.name, *profile.notes]))
            self._clock(answer.headers.get("Date", ""))
        with self._asking("authorization"):
            self._note("authorization", self.registry.way)
        for name, fact in sorted(self.capabilities.all(str(self.registry.origin)).items()):
            self._note(f"learned: {name}", fact.value)

    def repository(self, name: str, what: Descriptor | None, *, try_push: bool = False) -> None:
        """What it lets us do in the repository ``name``, which holds the manifest ``what``, if any."""
        with self._asking("pull"):
            path = f"/v2/{name}/manifests/{what.digest if what else 'envbuilder-doctor'}"
            answer = self._ask("HEAD", path, name, headers=_ACCEPT)
            allowed = {200: "allowed", 404: "allowed; nothing of that name is there"}
            self._note("pull", allowed.get(answer.status, f"refused: {answer.status}"), ok=answer.status in allowed)
            self._scopes(f"repository:{name}:pull")
        blob = None
        if what is not None:
            with self._asking("range"):
                blob = self._blob(name, what)
                if blob is not None:
                    self._range(name, blob)
            with self._asking("referrers API"):
                self._referrers(name, what)
        if try_push:
            with self._asking("push"):
                self._push(name, blob)

    def _blob(self, name: str, what: Descriptor) -> Descriptor | None:
        for _ in range(_MAX_DEPTH):
            answer = self._request("GET", f"/v2/{name}/manifests/{what.digest}", name, headers=_ACCEPT)
            document = parse_document(answer.read_all(MAX_MANIFEST_SIZE), source=f"{name}: {what.digest}")
            if not isinstance(document, Index):
                return document.config if document.config.size else None
            if not document.manifests:
                return None
            what = document.manifests[0]
        return None

    def _range(self, name: str, blob: Descriptor) -> None:
        answer = self._ask("GET", f"/v2/{name}/blobs/{blob.digest}", name, headers={"Range": "bytes=0-0"})
        works = answer.status == 206
        self.capabilities.note(str(self.registry.origin), "range", "yes" if works else "no")
        text = "yes" if works else f"no, status {answer.status}: lazy starts read whole layers, downloads don't resume"
        self._note("range", text, ok=works)

    def _referrers(self, name: str, what: Descriptor) -> None:
        answer = self._ask("GET", f"/v2/{name}/referrers/{what.digest}", name)
        declared = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        works = answer.status == 200 and declared == media_types.OCI_INDEX
        self._note("referrers API", "yes" if works else f"no, status {answer.status}: the tag schema is used")

    def _push(self, name: str, blob: Descriptor | None) -> None:
        path = f"/v2/{name}/blobs/uploads/"
        if blob is not None:
            path += f"?mount={quote(str(blob.digest), safe='')}&from={quote(name)}"
        answer = self._ask("POST", path, name, actions="pull,push", headers={"Content-Length": "0"})
        self._note(
            "push", "allowed" if answer.status in (201, 202) else f"refused: {answer.status}", ok=answer.status < 300
        )
        self._scopes(f"repository:{name}:pull,push")
        if blob is not None and answer.status < 300:
            self._note("mount", "yes" if answer.status == 201 else "no: layers are sent again")
        if answer.status == 202 and (location := answer.headers.get("Location")):
            url = self.registry.follow(location, answer.url)
            scopes = (f"repository:{name}:pull,push",)
            gone = self.registry.request(Call(method="DELETE", url=url, scopes=scopes, retry=False), _ANY)
            gone.finish()
            self._note("cancel of an upload", "yes" if gone.status < 300 else f"no, status {gone.status}")

    def _scopes(self, asked: str) -> None:
        granted = self.registry.granted((asked,))
        if granted is not None:
            kind, name, wanted = asked.split(":")
            actions = {action for each in granted for action in each.removeprefix(f"{kind}:{name}:").split(",")}
            self._note(
                f"scopes for {wanted.replace(',', ' and ')}",
                f"asked for {asked}; the token grants {', '.join(granted) or 'nothing'}",
                ok=set(wanted.split(",")) <= actions or "*" in actions,
            )

    def _clock(self, date: str) -> None:
        try:
            skew_s = email.utils.parsedate_to_datetime(date).timestamp() - self.now_s()
        except (ValueError, TypeError):
            self._note("clock", "it does not say")
            return
        ok = abs(skew_s) <= MAX_SKEW_S
        ours = "" if ok else "; tokens and signed URLs may be refused: set this machine's clock"
        self._note("clock", f"{round(skew_s):+d} s from ours{ours}", ok=ok)

    def _ask(
        self, method: str, path: str, name: str = "", *, actions: str = "pull", headers: dict[str, str] | None = None
    ) -> Answer:
        answer = self._request(method, path, name, actions=actions, headers=headers)
        answer.finish()
        return answer

    def _request(
        self, method: str, path: str, name: str, *, actions: str = "pull", headers: dict[str, str] | None = None
    ) -> Answer:
        scopes = (f"repository:{name}:{actions}",) if name else ()
        call = Call(method=method, url=self.registry.url(path), scopes=scopes, headers=headers or {}, retry=False)
        return self.registry.request(call, _ANY)

    def _note(self, name: str, value: str, *, ok: bool | None = None) -> None:
        self.found.append(Finding(name=name, value=value, ok=ok))

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        try:
            yield
        except EnvbuilderError as error:
            self._note(name, str(error), ok=False)


def http_library() -> Finding:
    """Whether ``urllib3`` is urllib3: niquests' urllib3-future puts itself in its place (registry.md 15)."""
    version = str(getattr(urllib3, "__version__", "?"))
    try:
        other = importlib.metadata.version("urllib3-future")
    except importlib.metadata.PackageNotFoundError:
        other = ""
    # Its versions have three digits behind the second dot: 2.8.901.
    if other or re.fullmatch(r"\d+\.\d+\.9\d\d", version):
        text = f"{version}, in fact urllib3-future {other}: half the speed. Uninstall niquests and reinstall urllib3"
        return Finding(name="urllib3", value=text, ok=False)
    return Finding(name="urllib3", value=version, ok=True)
