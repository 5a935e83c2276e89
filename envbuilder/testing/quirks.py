"""What products do otherwise than the specification: one setting of the fake registry for each row of registry.md 9.

Cloud products rest on public issues and documentation, not on tests against the live service.
Each quirk is met by the client in tests/fault/registry/test_quirks.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from envbuilder.testing.habits import MANIFEST_LIMIT
from envbuilder.testing.registry import FakeRegistry, Fault, header, redirect, refuse
from envbuilder.testing.serving import Reply, Request

#: Sets a registry up; the second one stands on another origin (its storage, or a bystander).
Setting: TypeAlias = Callable[[FakeRegistry, FakeRegistry], None]
_PUT_LIMIT = 20 << 20  # bytes; ACR behind its proxies (harbor#23015)
_PATCH_LIMIT = 4 << 20  # bytes; GHCR (ocx#237)


@dataclass(frozen=True, slots=True)
class Quirk:
    """One habit of one product; ``source`` is where it was seen."""

    name: str
    source: str
    set_up: Setting


def habits(**values: Any) -> Setting:
    """Other habits."""

    def set_up(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
        for name, value in values.items():
            setattr(registry, name, value)

    return set_up


def fault(method: str, path: str, what: Fault, **options: Any) -> Setting:
    """A fault."""
    return lambda registry, _elsewhere: registry.fault(method, path, what, **options)


def both(*settings: Setting) -> Setting:
    """Several settings at once."""

    def set_up(registry: FakeRegistry, elsewhere: FakeRegistry) -> None:
        for setting in settings:
            setting(registry, elsewhere)

    return set_up


def _stored_elsewhere(registry: FakeRegistry, elsewhere: FakeRegistry) -> None:
    """GET and HEAD lead to presigned URLs of another origin, which refuses a second way of authorization."""
    elsewhere.blobs = registry.blobs
    twice = refuse(400, "InvalidArgument", "Only one auth mechanism allowed")

    def lead(request: Request, reply: Reply) -> Reply:
        there = f"{elsewhere.url}{request.path}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=c0ffee"
        return redirect(there)(request, reply) if reply.status in (200, 206) else reply

    for method in ("GET", "HEAD"):
        registry.fault(method, "/blobs/sha256", lead)
        elsewhere.fault(method, "/blobs/", twice, only=_is_authorized)


def _metered(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """A manifest costs, a HEAD does not; ten an hour are free."""
    taken = 0

    def meter(request: Request, reply: Reply) -> Reply:
        nonlocal taken
        taken += 1
        if taken > 10:
            return refuse(429, "TOOMANYREQUESTS", "You have reached your pull rate limit", Retry_After="3600")(
                request, reply
            )
        return header("ratelimit-remaining", f"{10 - taken};w=21600")(request, reply)

    registry.fault("GET", "/manifests/", meter)


def _known_repositories_only(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    registry.fault(
        "POST", "/blobs/uploads/", refuse(404, "NAME_UNKNOWN", "The repository does not exist"), instead=True
    )


def _counts_cookies_as_browsers(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """A request with our own cookie is taken for a browser's, and lacks a CSRF token."""
    for method in ("GET", "HEAD", "POST", "PUT"):
        registry.fault(method, "/v2/", header("Set-Cookie", "sid=abc; Path=/; HttpOnly"))
        registry.fault(method, "/v2/", refuse(403, "FORBIDDEN", "CSRF token invalid"), only=_has_cookie, instead=True)


def _serves_a_stub(_request: Request, reply: Reply) -> Reply:
    return replace(reply, body=b"", headers={"Content-Length": "0"}) if reply.status == 200 else reply


def _tag_of_the_subject(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """The tag sha256-HEX is taken for the digest, so it names the subject itself."""

    def itself(request: Request, reply: Reply) -> Reply:
        name, _, tag = urlsplit(request.path).path.removeprefix("/v2/").partition("/manifests/")
        found = registry.manifests.get((name, tag.replace("sha256-", "sha256:")))
        if reply.status != 404 or not found:
            return reply
        return Reply(headers={"Content-Type": found[0]}, body=found[1])

    registry.fault("GET", "/manifests/sha256-", itself)


def _tokens_expire_in_uploads(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    def expire(_request: Request, reply: Reply) -> Reply:
        registry.expire_tokens()
        return reply

    registry.fault("POST", "/blobs/uploads/", expire)


def _expired_login(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """An expired personal token is refused with 403 where no token at all would do."""
    registry.fault("GET", "/token", refuse(403, "DENIED", "denied"), only=_is_authorized, instead=True)


def _refused_with_a_page(_request: Request, _reply: Reply) -> Reply:
    """What a proxy before a registry says: HTML, and no code."""
    return Reply(status=413, body=b"<html><title>413 Request Entity Too Large</title></html>")


def _is_giant(request: Request) -> bool:
    return len(request.body) > MANIFEST_LIMIT


def _is_large(request: Request) -> bool:
    return len(request.body) > _PUT_LIMIT


def _is_empty(request: Request) -> bool:
    return not request.body


def _has_subject(request: Request) -> bool:
    try:
        return "subject" in json.loads(request.body)
    except ValueError:
        return False


def _has_cookie(request: Request) -> bool:
    return "cookie" in request.headers


def _is_authorized(request: Request) -> bool:
    return "authorization" in request.headers


def _mounts(request: Request) -> bool:
    return "mount" in request.query


def _mounts_from_nowhere(request: Request) -> bool:
    return _mounts(request) and "from" not in request.query


def _under_load(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    for method, status in (("POST", 502), ("PUT", 429), ("GET", 429), ("HEAD", 502)):
        registry.fault(method, "/v2/", refuse(status), times=2, instead=True)


_MOUNT = "/blobs/uploads/"
_ALL = (
    Quirk("distribution-2.8-chunks", "a replayed chunk is appended and answered with 202 [M]", habits(ordered=False)),
    Quirk(
        "distribution-2.8-manifest",
        "4 MiB and more: 400 MANIFEST_INVALID [M]",
        both(
            habits(max_manifest=1 << 62),
            fault(
                "PUT",
                "/manifests/",
                refuse(400, "MANIFEST_INVALID", "http: request body too large"),
                only=_is_giant,
                instead=True,
            ),
        ),
    ),
    Quirk(
        "distribution-2.8-tags",
        "n is ignored, no Link, a tag cannot be deleted [M]",
        habits(paged=False, delete_tags=False),
    ),
    Quirk("distribution-3-chunks", "416 for a chunk out of order (distribution#3227)", habits(ordered=True)),
    Quirk(
        "distribution-3-race",
        "the same blob pushed twice at once (buildx#3722)",
        fault("PUT", "/blobs/", refuse(404, "BLOB_UPLOAD_UNKNOWN"), times=1),
    ),
    Quirk("s3-redirect", "GET and HEAD: 307 to another origin (opa#6580, renovate#3877)", _stored_elsewhere),
    Quirk("s3-empty-blob", "500 for a blob of 0 bytes [M]", habits(empty_blobs=False)),
    Quirk(
        "hub-mount",
        "a mount across origins fails (ggcr#1741)",
        fault("POST", _MOUNT, refuse(401, "UNAUTHORIZED"), only=_mounts, instead=True),
    ),
    Quirk("hub-metered", "manifest GETs are counted, HEADs are not ([ocync])", _metered),
    Quirk("ghcr-4mib", "a larger PATCH: 416 (ocx#237, rust-oci-client#37)", habits(max_patch=_PATCH_LIMIT)),
    Quirk("ghcr-lossy", "of several PATCHes the last one stays ([ocync])", habits(lossy_patch=True)),
    Quirk("ghcr-expired-login", "an expired token blocks public pulls with 403 (oras#1161)", _expired_login),
    Quirk(
        "ecr-patch",
        "201 for a chunk, Range sticks (containers-roadmap#2831)",
        habits(patch_status=201, patch_range="first"),
    ),
    Quirk("ecr-no-head", "405 for a HEAD", habits(head=False)),
    Quirk("ecr-no-repository", "a repository must exist before a push", _known_repositories_only),
    Quirk("ecr-immutable", "a tag never moves", habits(immutable=True)),
    Quirk(
        "ecr-subject-405",
        "some manifests with a subject (containers-roadmap#2783)",
        fault("PUT", "/manifests/", refuse(405, "UNSUPPORTED", "Invalid parameter"), only=_has_subject, instead=True),
    ),
    Quirk("ecr-subject-unmeant", "OCI-Subject without the API (sigstore-js#1183)", habits(confirms_subject=True)),
    Quirk(
        "gar-no-patch",
        "no chunks (skopeo#1101, kitops#777); uploads at another path",
        habits(chunks=False, upload_prefix="/artifacts-uploads"),
    ),
    Quirk("acr-20mb", "a larger PUT: 413 (harbor#23015, artifacts#55)", habits(max_put=_PUT_LIMIT)),
    Quirk(
        "cloudflare-cap",
        "a larger body: 413 and a page (serverless-registry#71)",
        fault("PUT", "/blobs/", _refused_with_a_page, only=_is_large, instead=True),
    ),
    Quirk(
        "quay-mount",
        "mount without from fails ([ggcr])",
        fault("POST", _MOUNT, refuse(500), only=_mounts_from_nowhere, instead=True),
    ),
    Quirk("quay-load", "429 and 502 under load (wire-server#2785, skopeo#2499)", _under_load),
    Quirk(
        "quay-empty-chunk",
        "5xx for a chunk of nothing (quay#2005)",
        fault("PATCH", "/", refuse(500, "INTERNAL_ERROR"), only=_is_empty, instead=True),
    ),
    Quirk("harbor-cookies", "a cookie brings CSRF checks", _counts_cookies_as_browsers),
    Quirk(
        "zot-stub",
        "200 and 0 bytes for a blob that is only a stub (zot#4427)",
        both(fault("GET", "/blobs/sha256", _serves_a_stub), fault("HEAD", "/blobs/sha256", _serves_a_stub)),
    ),
    Quirk("zot-chunk-range", "Range says the last chunk (regclient#961, #627 for Aliyun)", habits(patch_range="chunk")),
    Quirk(
        "gitlab-first-mount",
        "the first mount fails (skopeo#1323)",
        both(
            habits(mount="accept"),
            fault("POST", _MOUNT, refuse(404, "NAME_UNKNOWN"), times=1, only=_mounts, instead=True),
        ),
    ),
    Quirk("gitlab-subject-tag", "the tag sha256-HEX names the subject (oras-go#1396)", _tag_of_the_subject),
    Quirk("gitlab-token", "a token of 5 minutes ends in the upload (moby#33558)", _tokens_expire_in_uploads),
    Quirk(
        "nexus-race",
        "the same blob pushed twice at once: 400 (nexus-public#967)",
        fault("PUT", "/blobs/", refuse(400, "BLOB_UPLOAD_INVALID"), times=1),
    ),
    Quirk("no-ranges", "Range is a SHOULD: 200 means all of it (dspec)", habits(ranges=False)),
    Quirk("relative-location", "Location may be relative (dspec)", habits(relative_locations=True)),
    Quirk("single-post", "POST ?digest= stores at once (dspec, end-4b)", habits(single_post=True)),
    Quirk("min-chunk", "OCI-Chunk-Min-Length (dspec)", habits(min_chunk=1 << 20)),
    Quirk("referrers", "the API is there (dspec; ECR, GAR, zot, Harbor)", habits(referrers=True)),
)
QUIRKS = {quirk.name: quirk for quirk in _ALL}
