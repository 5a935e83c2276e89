"""Profiles: what is known about registry products before the first request, as data.

A profile is found by the registry's host name or by a mark in its answers. It only sets where to begin:
what a registry then does is learned (capabilities.py) and wins. Sources: registry.md 9, row by row;
those of cloud products rest on public issues and documentation, not on tests against the live service.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: How the bytes of a blob are sent: one PUT; one PATCH without Content-Range, then PUT; many PATCHes, then PUT.
Way: TypeAlias = Literal["put", "stream", "chunks"]
WAYS: tuple[Way, ...] = ("put", "stream", "chunks")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What to expect of a product.

    hosts: patterns of host names without port. marks: header name and pattern of answers that only it gives.
    chunk_size: bytes, where chunks are asked for. last_in_put: the last bytes ride on the closing PUT.
    mount: whether a mount was ever seen to succeed. referrers: whether the API is there; None: ask.
    """

    name: str
    hosts: tuple[str, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    way: Way = "put"
    chunk_size: int = 32 * _MIB
    last_in_put: bool = False
    mount: bool = True
    referrers: bool | None = None
    notes: tuple[str, ...] = ()


GENERIC = Profile(name="generic")

PROFILES: tuple[Profile, ...] = (
    Profile(
        name="Docker Hub",
        hosts=("docker.io", "index.docker.io", "registry-1.docker.io"),
        referrers=False,
        notes=(
            "manifest GETs are metered, HEADs are free",
            "a mount works within one account only",
            "no referrers API (docker/roadmap#724): the tag schema is used",
        ),
    ),
    Profile(
        name="GHCR",
        hosts=("ghcr.io",),
        marks=(("x-github-request-id", r"."),),
        referrers=False,
        notes=(
            "chunks are never used: a PATCH over 4 MiB is refused, several lose data (ocx#237)",
            "at most 10 GB a layer and 10 minutes an upload",
            "an expired token blocks public pulls with 403 (oras#1161)",
        ),
    ),
    Profile(
        name="GitLab",
        hosts=("registry.gitlab.com",),
        marks=(("gitlab-container-registry-version", r"."),),
        referrers=False,
        notes=("tokens live for 5 minutes", "the first mount may fail (skopeo#1323)"),
    ),
    Profile(
        name="ECR",
        hosts=("*.dkr.ecr.*.amazonaws.com", "*.dkr.ecr.*.amazonaws.com.cn", "public.ecr.aws"),
        marks=(("www-authenticate", r'realm="https://[^"]*\.ecr\.[^"]*amazonaws\.com'),),
        chunk_size=8 * _MIB,
        last_in_put=True,
        mount=False,
        notes=(
            "the repository must exist; tags may be immutable",
            "mounting is an opt-in of the account (BLOB_MOUNTING)",
            "a Range in an upload's answer stays at the first chunk (containers-roadmap#2831)",
        ),
    ),
    Profile(
        name="Artifact Registry",
        hosts=("*-docker.pkg.dev", "gcr.io", "*.gcr.io"),
        mount=False,
        referrers=True,
        notes=("no chunked upload: always one PUT (skopeo#1101)", "an upload goes on at another path"),
    ),
    Profile(
        name="ACR",
        hosts=("*.azurecr.io", "*.azurecr.cn", "*.azurecr.us"),
        marks=(("www-authenticate", r'realm="https://[^"]*\.azurecr\.(io|cn|us)/'),),
        chunk_size=16 * _MIB,
        notes=("one large PUT may get 413 behind its proxies (harbor#23015): then chunks are sent, and remembered",),
    ),
    Profile(
        name="Quay",
        hosts=("quay.io",),
        marks=(("www-authenticate", r'realm="https?://[^"]*/v2/auth"'),),
        notes=("what no tag names is collected after a time: pins may break", "HTTP/1.1 is the fast way to it"),
    ),
    Profile(
        name="Harbor",
        marks=(("www-authenticate", r'service="harbor-registry"'),),
        notes=("no cookies are sent: they would trigger its CSRF check", "layers over 32 GiB need 2.10 or later"),
    ),
    Profile(
        name="zot",
        marks=(("www-authenticate", r'service="zot|realm="zot'), ("server", r"(?i)\bzot\b")),
        referrers=True,
        notes=("a blob may be an empty stub of its deduplication: sizes are compared (zot#4427)",),
    ),
    Profile(
        name="Artifactory",
        marks=(("x-jfrog-version", r"."), ("x-artifactory-id", r".")),
        way="stream",
        notes=("wants a PATCH before the PUT (containerd#3533)",),
    ),
    Profile(
        name="Nexus",
        marks=(("server", r"^Nexus/"),),
        notes=("the same blob pushed twice at once gives 400 (nexus-public#967): then its presence is asked",),
    ),
    # Last: many products pass its header on.
    Profile(
        name="distribution 3",
        # Its upload ids are UUIDs of version 7, those of 2.8 of version 4 (measured on 2.8.2 and 3.0.0).
        marks=(("docker-upload-uuid", r"^[0-9a-f]{8}-[0-9a-f]{4}-7"),),
        referrers=False,
        notes=("a chunk out of order gets 416", "no referrers API: the tag schema is used"),
    ),
    Profile(
        name="distribution",
        marks=(("docker-distribution-api-version", r"^registry/2\.0$"),),
        referrers=False,
        notes=(
            "2.8 appends a replayed chunk: an upload is asked for its length before it goes on",
            "no referrers API: the tag schema is used",
        ),
    ),
)


def profile_of_host(host: str) -> Profile | None:
    """The profile of the product that ``host`` (with or without a port) is known to be."""
    name = host.rpartition(":")[0] if re.search(r":\d+\Z", host) else host
    return next((one for one in PROFILES for pattern in one.hosts if fnmatch.fnmatchcase(name.lower(), pattern)), None)


def profile_of_answer(headers: Mapping[str, str]) -> Profile | None:
    """The profile whose mark an answer bears; header names in any case."""
    lower = {name.lower(): text[:2000] for name, text in headers.items()}
    return next(
        (one for one in PROFILES for name, pattern in one.marks if re.search(pattern, lower.get(name, ""))), None
    )


def compares_digests(location: str) -> bool:
    """Whether ``location`` is an upload of distribution's own code, which compares the digest when it is closed.

    Only that code puts ``_state`` there (registry/handlers/hmac.go); of what else is called distribution, or of
    other products, nobody here has seen that they do.
    """
    return "_state=" in location.partition("?")[2]


def profile_named(name: str) -> Profile | None:
    """The profile of this ``name``."""
    return next((one for one in PROFILES if one.name == name), None)


def as_way(text: str) -> Way | None:
    """``text`` as a way to upload."""
    return next((way for way in WAYS if way == text), None)
