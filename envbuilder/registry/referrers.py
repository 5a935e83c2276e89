"""What a registry says about referrers, and tags that are changed only if nobody else did.

Source: OCI distribution-spec 1.1, "Listing Referrers", "Pushing Manifests with Subject"; registry.md 5 and 9.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from envbuilder.digest import Descriptor, Digest
from envbuilder.oci import media_types
from envbuilder.oci.artifact import parse_listed
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, parse_document
from envbuilder.oci.reference import check_tag
from envbuilder.registry.client import Call, RegistryClient
from envbuilder.registry.errors import BadAnswer, Rejected
from envbuilder.registry.offer import offer
from envbuilder.registry.pages import pages
from envbuilder.registry.tags import RegistryTags
from envbuilder.store.referrers import Listing, Swapped, TagState
from envbuilder.store.target import NotFound

if TYPE_CHECKING:
    from envbuilder.registry.capabilities import Capabilities

_log = logging.getLogger("envbuilder.registry")
_ACCEPT = ", ".join(media_types.MANIFEST_ACCEPT)
#: Answers of a registry that has no such API (registry.md 9: 404, and ECR's 405 at times).
_NO_API = frozenset({400, 404, 405, 406, 501})
#: Conditions that a registry may refuse as such; then there is none (501: RFC 9110 for what it does not know).
_UNCONDITIONAL = frozenset({400, 428, 501})


class RegistryReferrers(RegistryTags):
    """The part of a RegistryTarget that knows about referrers; mixed into it."""

    _client: RegistryClient
    _origin: str
    _capabilities: Capabilities

    @property
    def name(self) -> str:
        """``host/repository``."""
        raise NotImplementedError

    def listed_referrers(self, subject: Descriptor, artifact_type: str) -> Listing | None:
        """What the API lists; None: this repository has none, which is remembered.

        Raises:
            BadAnswer, InvalidJson: pages without end, or a list that is malformed.
        """
        fact = f"referrers/{self._repository}"
        if self._capabilities.get(self._origin, fact) == "no":
            return None
        query = "?" + urlencode({"artifactType": artifact_type}) if artifact_type else ""
        call = self._call(
            "GET", f"/v2/{self._repository}/referrers/{subject.digest}{query}", accept=media_types.OCI_INDEX
        )
        try:
            first = self._registry.request(call, {200, *_NO_API})
        except NotFound:
            first = None
        if first is None or first.status != 200 or not _is_index(first.headers.get("Content-Type", "")):
            if first is not None:
                first.finish()
            self._capabilities.note(self._origin, fact, "no")
            return None
        found: list[Descriptor] = []
        for answer, data in pages(self._registry, call, first):
            listed = parse_listed(data, subject.digest, source=answer.where)
            if listed is None:
                raise BadAnswer(f"{answer.where}: want an index of referrers")
            found += listed
        self._capabilities.note(self._origin, fact, "yes")
        # Empty may also mean that they were pushed before the API was there: then the tag has them.
        return Listing(found=tuple(found), complete=bool(found))

    def tag_state(self, tag: str) -> TagState | None:
        """What ``tag`` names; None: nothing.

        Raises:
            BadAnswer, InvalidJson: it is no manifest.
        """
        call = self._call("GET", f"/v2/{self._repository}/manifests/{check_tag(tag)}", accept=_ACCEPT)
        try:
            answer, data = self._registry.whole(call, self._registry.request(call, (200,)), MAX_MANIFEST_SIZE)
        except NotFound:
            return None
        media_type = parse_document(data, source=f"{self.name}: {tag}").media_type
        what = Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data))
        etag = answer.headers.get("ETag", "")
        # A weak tag compares what is alike, not what is the same: it guards no writing (RFC 9110, 13.1.1).
        return TagState(what=what, data=data, version="" if etag.startswith("W/") else etag)

    def swap_tag(self, tag: str, what: Descriptor, data: bytes, was: TagState | None) -> Swapped:
        """Store ``data`` as ``tag`` on the condition that it still names ``was``; many registries ignore that."""
        condition = {"If-None-Match": "*"} if was is None else {"If-Match": was.version} if was.version else {}
        for headers in (condition, {}):
            call = Call(
                method="PUT",
                url=self._registry.url(f"/v2/{self._repository}/manifests/{check_tag(tag)}"),
                scopes=(f"repository:{self._repository}:pull,push",),
                headers={"Content-Type": what.media_type, **headers},
                body=data,
                size=len(data),
            )
            try:
                answer = offer(self._registry, call, (200, 201, 202, 409, 412), self._client.sleep)
            except Rejected as error:
                if not headers or error.status not in _UNCONDITIONAL:
                    raise
                _log.debug("%s: %s; once more without a condition", self.name, error)
                continue
            answer.finish()
            # 2xx may still mean that the condition was not looked at (distribution 2.8 and 3).
            return "lost" if answer.status in (409, 412) else "unsure"
        raise AssertionError("unreachable: the second way raises or returns")


def _is_index(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == media_types.OCI_INDEX
