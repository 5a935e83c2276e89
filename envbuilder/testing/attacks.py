"""What a hostile registry tries: one setting of the fake registry for each attack of registry.md 8.2 that it can make.

``elsewhere`` is the origin that the attacker would like to hear from: no credential may ever reach it.
Attacks that need no registry (archives, symlinks, bombs) are in tests/fault/mount and tests/fault/layer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index
from envbuilder.testing.quirks import Setting, both, fault
from envbuilder.testing.registry import FakeRegistry, body, drip, endless, header, redirect, refuse
from envbuilder.testing.serving import Reply, Request

#: The image that attacks are about: ``a/b:v1`` with one config and one layer.
REPOSITORY, TAG = "a/b", "v1"
#: An address that no registry has to name: the metadata service of clouds.
METADATA = "http://169.254.169.254/latest/meta-data/"
_ZEROS = f"sha256:{'0' * 64}"


@dataclass(frozen=True, slots=True)
class Attack:
    """One thing that a registry must not get away with; ``precedent`` is who did not withstand it."""

    name: str
    precedent: str
    set_up: Setting


def manifest_of(registry: FakeRegistry, **changes: object) -> bytes:
    """The manifest at ``a/b:v1``, with other fields."""
    value = json.loads(registry.manifests[REPOSITORY, TAG][1])
    return json.dumps({**value, **changes}).encode()


def _replaced(**changes: object) -> Setting:
    return lambda registry, _elsewhere: _put(registry, manifest_of(registry, **changes))


def _put(registry: FakeRegistry, data: bytes, media_type: str = media_types.OCI_MANIFEST) -> None:
    registry.add_manifest(REPOSITORY, TAG, data, media_type)


def _foreign_layer(registry: FakeRegistry, elsewhere: FakeRegistry) -> None:
    """A layer that is not here, with the place to get it from."""
    layer = describe(b"not here").to_json() | {"urls": [f"{elsewhere.url}/layer", METADATA]}
    kind = "application/vnd.oci.image.layer.nondistributable.v1.tar"
    _put(registry, manifest_of(registry, layers=[layer | {"mediaType": kind}]))


def _moving_tag(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """Each GET of the tag gives another manifest; what was there before stays under its digest."""
    count = 0

    def move(_request: Request, reply: Reply) -> Reply:
        nonlocal count
        count += 1
        _put(registry, manifest_of(registry, annotations={"moved": str(count)}))
        return reply

    registry.fault("GET", f"/manifests/{TAG}", move)
    registry.fault("HEAD", f"/manifests/{TAG}", move)


def _other_manifest(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """A pinned digest is answered with another manifest, whose header lies for it."""
    evil = manifest_of(registry, annotations={"evil": "1"})
    registry.fault("GET", "/manifests/sha256:", body(lambda _data: evil))


def _cycle(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    claimed = describe(b"x" * 300, media_types.OCI_INDEX)
    data = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [claimed.to_json()]})
    _put(registry, data.encode(), media_types.OCI_INDEX)
    registry.manifests[REPOSITORY, str(claimed.digest)] = (media_types.OCI_INDEX, data.encode())


def _deep(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    what = describe(registry.manifests[REPOSITORY, TAG][1], media_types.OCI_MANIFEST)
    for _ in range(6):
        what = registry.add_manifest(REPOSITORY, TAG, Index(manifests=(what,)).dump(), media_types.OCI_INDEX)


def _wide(registry: FakeRegistry, _elsewhere: FakeRegistry) -> None:
    """One manifest, named as thousands of children."""
    children = tuple(describe(f"child {number}".encode(), media_types.OCI_MANIFEST) for number in range(5000))
    for number, child in enumerate(children):
        registry.manifests[REPOSITORY, str(child.digest)] = (media_types.OCI_MANIFEST, f"child {number}".encode())
    _put(registry, Index(manifests=children).dump(), media_types.OCI_INDEX)


def _elsewhere_for(method: str, path: str, status: int = 307) -> Setting:
    """A redirect to another origin, which would know what to do with credentials."""

    def set_up(registry: FakeRegistry, elsewhere: FakeRegistry) -> None:
        elsewhere.blobs, elsewhere.manifests = registry.blobs, registry.manifests
        registry.fault(
            method,
            path,
            lambda request, reply: redirect(f"{elsewhere.url}{request.path}", status)(request, reply),
            instead=True,
        )

    return set_up


def _challenge(realm: str) -> Setting:
    """A token server at ``realm``; ``{elsewhere}`` stands for the other origin."""

    def set_up(registry: FakeRegistry, elsewhere: FakeRegistry) -> None:
        # localhost and 127.0.0.1 are two hosts: nobody said that they have one owner.
        there = elsewhere.url.replace("127.0.0.1", "localhost")
        registry.realm = realm.format(elsewhere=there)

    return set_up


def _location(where: str) -> Setting:
    return lambda registry, elsewhere: registry.fault(
        "POST", "/uploads/", header("Location", where.format(elsewhere=elsewhere.url))
    )


def _echo(request: Request, _reply: Reply) -> Reply:
    """An error that repeats what it was sent."""
    return refuse(400, "UNKNOWN", f"you sent {request.headers.get('authorization', '')}")(request, Reply())


def _is_authorized(request: Request) -> bool:
    return "authorization" in request.headers


def _wrong_length(_request: Request, reply: Reply) -> Reply:
    return replace(reply, headers={**reply.headers, "Content-Length": str(len(reply.body) + 10)}, cut_at=None)


_ALL = (
    Attack("tag-moves", "kyverno#16213: verified one image, ran another", _moving_tag),
    Attack("other-blob", "oras-py#247, rust-oci-client#149", fault("GET", "/blobs/", body(bytes.swapcase))),
    Attack("short-blob", "regclient#798", fault("GET", "/blobs/", body(lambda data: data[:-1]))),
    Attack("long-blob", "containers/image#2687", fault("GET", "/blobs/", body(lambda data: data + b"x"))),
    Attack("endless-blob", "class of CVE-2020-1702", fault("GET", "/blobs/", endless)),
    Attack("other-manifest", "distribution-spec#549, regclient#798", _other_manifest),
    Attack(
        "lying-digest-header", "distribution#2395", fault("GET", "/manifests/", header("Docker-Content-Digest", _ZEROS))
    ),
    Attack(
        "digest-header-as-path",
        "CVE-2024-3727",
        fault("GET", "/manifests/", header("Docker-Content-Digest", "sha256:../../../etc/passwd")),
    ),
    Attack(
        "digest-as-path",
        "CVE-2024-3727",
        _replaced(
            layers=[{"mediaType": media_types.OCI_LAYER_TAR, "digest": "sha256:../../../../etc/passwd", "size": 5}]
        ),
    ),
    Attack(
        "negative-size",
        "class of CVE-2020-1702",
        _replaced(layers=[{"mediaType": media_types.OCI_LAYER_TAR, "digest": _ZEROS, "size": -1}]),
    ),
    Attack(
        "two-sizes",
        "-",
        _replaced(layers=[{"mediaType": media_types.OCI_LAYER_TAR, "digest": _ZEROS, "size": size} for size in (1, 2)]),
    ),
    Attack(
        "duplicate-keys",
        "image-spec considerations.md",
        lambda registry, _elsewhere: _put(registry, manifest_of(registry)[:-1] + b',"config":{}}'),
    ),
    Attack(
        "giant-manifest",
        "ggcr#2204, CVE-2020-1702",
        lambda registry, _elsewhere: _put(registry, manifest_of(registry, annotations={"a": "x" * (5 << 20)})),
    ),
    Attack("endless-manifest", "ggcr#2204", fault("GET", "/manifests/", endless)),
    Attack("nested-json", "-", lambda registry, _elsewhere: _put(registry, b'{"a":' * 100_000)),
    Attack("cyclic-index", "-", _cycle),
    Attack("deep-index", "-", _deep),
    Attack("wide-index", "-", _wide),
    Attack("foreign-layer", "class of CVE-2020-15157", _foreign_layer),
    Attack(
        "media-type-confusion",
        "CVE-2021-41190",
        lambda registry, _elsewhere: _put(registry, manifest_of(registry), media_types.OCI_INDEX),
    ),
    Attack("realm-metadata", "CVE-2026-24845, CVE-2026-33540", _challenge(METADATA)),
    Attack("realm-elsewhere", "CVE-2020-15157, CVE-2026-48978", _challenge("{elsewhere}/token")),
    Attack("realm-file", "golang/vulndb#6092", _challenge("file:///etc/passwd")),
    Attack("realm-userinfo", "-", _challenge("http://alice@127.0.0.1/token")),
    Attack("realm-redirect", "CVE-2026-33990", _elsewhere_for("GET", "/token")),
    Attack("realm-endless", "class of CVE-2020-1702", fault("GET", "/token", endless)),
    Attack("blob-redirect", "ggcr#2193, opa#6580", _elsewhere_for("GET", "/blobs/")),
    Attack("manifest-redirect", "dspec of 2026-05-07", _elsewhere_for("GET", "/manifests/")),
    Attack("redirect-metadata", "ocync#60", fault("GET", "/blobs/", redirect(METADATA))),
    Attack(
        "redirect-loop",
        "-",
        lambda registry, _elsewhere: registry.fault(
            "GET", "/blobs/", lambda request, reply: redirect(f"{registry.url}{request.path}")(request, reply)
        ),
    ),
    Attack(
        "location-elsewhere",
        "guard in [ggcr] nextLocation",
        _location("{elsewhere}/v2/a/b/blobs/uploads/7?_state=secret%2Fstate"),
    ),
    Attack("location-metadata", "guard in [ggcr] nextLocation", _location(METADATA)),
    Attack("location-file", "-", _location("file:///etc/passwd")),
    Attack("upload-redirect", "-", _elsewhere_for("PUT", "/uploads/")),
    Attack(
        "echoed-secret",
        "secrets in logs",
        both(*(fault(method, "/v2/", _echo, only=_is_authorized, instead=True) for method in ("GET", "POST", "PUT"))),
    ),
    Attack("terminal-escape", "-", fault("GET", "/manifests/", refuse(404, "X", "\x1b]0;owned\x07\x1b[2J"))),
    Attack("slow-loris", "-", fault("GET", "/manifests/", drip(0.02))),
    Attack("wrong-length", "zot#4427", fault("GET", "/blobs/", _wrong_length)),
    Attack("endless-retry-after", "-", fault("GET", "/v2/", refuse(429, "TOOMANYREQUESTS", Retry_After="99999999"))),
)
ATTACKS = {attack.name: attack for attack in _ALL}
