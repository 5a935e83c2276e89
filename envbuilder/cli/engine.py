"""``docker-daemon:NAME:TAG``: which engine that is, and an image's way into it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.output import Result, human_size
from envbuilder.custom.docker_archive import DockerArchiveTarget
from envbuilder.custom.docker_engine import DockerEngine
from envbuilder.digest import Descriptor
from envbuilder.image.inspect import open_image
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import DaemonReference
from envbuilder.store.target import Target


def engine_host(environ: Mapping[str, str]) -> str:
    """The engine that ``docker`` would speak to: ``DOCKER_HOST``, a rootless one's socket, the system's."""
    if host := environ.get("DOCKER_HOST"):
        return host
    own = Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "docker.sock"
    return f"unix://{own}" if own.is_socket() else "unix:///var/run/docker.sock"


def open_in_engine(app: App, reference: DaemonReference) -> tuple[DockerArchiveTarget, Descriptor]:
    """The engine's image as a target and its manifest in it.

    Raises:
        NotFound, EngineAway, ExtraMissing: see the leaf.
    """
    with DockerEngine(engine_host(os.environ)) as engine, app.output.stage(f"save {reference.name}", 0):
        target = engine.open(reference.name, spool=Path(tempfile.gettempdir()))
    return target, target.lookup("")


def load_into_engine(
    app: App, source: Target, what: Descriptor, platform: Platform, reference: DaemonReference, *, dry_run: bool
) -> Result:
    """Let the engine have this host's image of ``what``; the Result of ``push``: its digest is the image ID there."""
    started = time.monotonic()
    image = open_image(source, what, platform)
    size = sum(layer.size for layer in image.manifest.layers)
    digest = image.manifest.config.digest
    app.output.note(f"load: {len(image.manifest.layers)} layers ({human_size(size)}) as {reference.name}")
    if not dry_run:
        with DockerEngine(engine_host(os.environ)) as engine, app.output.stage(f"load {reference.name}", 0):
            engine.load(source, image, reference.name, spool=Path(tempfile.gettempdir()))
    value = {
        "destination": str(reference),
        "digest": str(digest),
        "pinned": f"docker-daemon:{digest}",
        "copied": len(image.manifest.layers) + 1,
        "copied_bytes": size,
        "skipped": 0,
        "skipped_bytes": 0,
        "dry_run": dry_run,
        "seconds": round(time.monotonic() - started, 3),
    }
    return Result(str(digest), value)
