"""Repositories as this machine is configured: what it remembers of their registries, and how it uploads to them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envbuilder.cli.app import App
from envbuilder.cli.registries import mirror_client, mirrors_of, registry_client
from envbuilder.errors import SpecError
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.known import KnownBlobs
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.documents import Documents
from envbuilder.store.mirrored import MirroredTarget
from envbuilder.store.target import RangeTarget

_CHUNKED = re.compile(r"([^=\s]+)(?:=(\d{1,4}))?")
_MIB = 1 << 20
#: Requests of a start at once: both manifests, and where the trace is by the API and by the tag; later metadata,
#: config, trace and bundle.
_AT_ONCE = 4
#: Where Docker Hub's API is: nobody's mirror (containerd, core/remotes/docker: isProxy).
_HUBS = {"registry-1.docker.io": "docker.io"}


def capabilities(app: App) -> Capabilities:
    """What registries were seen to do from this machine."""
    return Capabilities(app.cache_directory / "registries")


def repository(
    app: App,
    reference: RegistryReference,
    client: RegistryClient,
    *,
    writable: bool = False,
    mount_from: Sequence[str] = (),
    deleting: bool = False,
    upstream: str = "",
) -> RegistryTarget:
    """The repository that ``reference`` names, with this machine's memory of its registry.

    What a registry holds is remembered for writing only: a reader gets what it asks for or an error. Who deletes
    (``deleting``) must forget it. upstream: what it is a mirror of, if it must be told.
    """
    return RegistryTarget(
        reference,
        client,
        writable=writable,
        mount_from=mount_from,
        known=KnownBlobs(app.cache_directory / "registries") if writable or deleting else None,
        capabilities=capabilities(app),
        upload=_upload(app, reference.host),
        upstream=upstream,
    )


def readable(app: App, reference: RegistryReference, *, starting: bool = False) -> RangeTarget:
    """The repository that ``reference`` names, to read from: through this machine's mirrors of its registry.

    starting: an image is read in order to start it: what this node kept of its documents serves.

    Raises:
        SpecError: a setting of mirrors is not what it may be.
    """
    origin = repository(app, reference, registry_client(app))
    mirrors = mirrors_of(app.settings, reference.host)
    if not (mirrors.places or starting):
        return origin
    targets = []
    for host, prefix in mirrors.places:
        name = f"{prefix}/{reference.repository}" if prefix else reference.repository
        upstream = mirrors.namespace if mirrors.namespace not in (host, _HUBS.get(host)) else ""
        targets.append(repository(app, RegistryReference(host, name), mirror_client(app), upstream=upstream))
    documents = Documents(app.mount_settings().cache_dir / "documents") if starting else None
    if documents and not (reference.digest and documents.find(reference.digest)):
        # What is asked at once comes after the index: until then there are connections for it.
        (targets or [origin])[0].open_ahead(_AT_ONCE)
    return MirroredTarget(origin, targets, tags=mirrors.tags, documents=documents)


def _upload(app: App, host: str) -> UploadSettings:
    """``registries.chunked`` is ``HOST`` or ``HOST=MIB``, comma separated."""
    for item in filter(None, (each.strip() for each in app.settings.get("registries.chunked").split(","))):
        match = _CHUNKED.fullmatch(item)
        if match is None:
            raise SpecError(f"registries.chunked: want HOST or HOST=MIB, got {item!r}")
        if match[1] == host:
            return UploadSettings(way="chunks", chunk_size=int(match[2] or 0) * _MIB)
    return UploadSettings()
