"""``envbuilder build ENV...``: layers and image into the store."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Meter, Result, human_size
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.targets import host_platform_of, open_destination, store_tag
from envbuilder.image.build import build_image, missing_plans
from envbuilder.layer.build import default_jobs
from envbuilder.layer.model import Layer
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Artifact, Lock
from envbuilder.oci.platform import Platform
from envbuilder.spec.project import environment_folder
from envbuilder.store.copy import DEFAULT_JOBS, copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target


@click.command(name="build", epilog="Example: envbuilder build ai --to localhost:5000/env/ai:1")
@click.argument("environments", nargs=-1, required=True, metavar="ENV...", shell_complete=environment_names)
@click.option(
    "--to", "destination", metavar="REF", default="", help="Also push there, each layer as soon as it is built."
)
@click.option("--platform", default="", metavar="P", help="Platform to build for (default: this host's).")
@click.option("--jobs", type=click.IntRange(1), default=default_jobs, help="Layers built at a time (default: cores).")
@click.option("--dry-run", is_flag=True, help="Say which layers would be built, build nothing.")
@common
def command(
    app: App, environments: tuple[str, ...], destination: str, platform: str, jobs: int, dry_run: bool
) -> Result:
    """Build the images of environments from their locks, into the store. Prints the digests.

    Layers that the store has are reused; artefacts are fetched only for layers that must be made.
    Nothing runs in a container, and no root is needed.
    """
    if destination and len(environments) > 1:
        raise click.UsageError("--to takes one environment at a time")
    parsed = Platform.parse(platform) if platform else host_platform_of()
    store = LayoutTarget(app.store_directory, create=True)
    chains = [fresh_locks(app.need_project(), name, parsed) for name in environments]
    if dry_run:
        return _plan(chains, store)
    values = [_build(app, locks, store, destination, jobs) for locks in chains]
    return Result("\n".join(value["digest"] for value in values), values)


def _plan(chains: list[tuple[Lock, ...]], store: LayoutTarget) -> Result:
    rows = [
        {"name": locks[-1].name, "layer": plan.id, "artifacts": len(plan.artifacts)}
        for locks in chains
        for plan in missing_plans(locks, store)
    ]
    text = "\n".join(f"{row['name']}: would build {row['layer']}" for row in rows) or "nothing to build"
    return Result(text, rows)


def _build(app: App, locks: tuple[Lock, ...], store: LayoutTarget, destination: str, jobs: int) -> dict[str, Any]:
    started = time.monotonic()
    lock, project = locks[-1], app.need_project()
    rows: list[dict[str, Any]] = []
    target, tag = open_destination(app, destination) if destination else (None, "")
    cache = artifact_cache(app, os.environ)
    needed = {artifact.digest: artifact for plan in missing_plans(locks, store) for artifact in plan.artifacts}
    absent = sum(artifact.size for artifact in needed.values() if not cache.has(artifact))
    with app.output.stage(f"{lock.name}: fetch", absent) as meter, _Pusher(target, store) as pusher:

        def finished(layer: Layer, reused: bool) -> None:
            rows.append(_row(layer, reused=reused))
            pusher.push(layer)
            if not reused:
                app.output.note(f"{layer.id}: built, {human_size(layer.blob.size)}")

        built = build_image(
            locks,
            store,
            _Watched(cache, meter),
            cache=app.cache_directory,
            folders={each.name: environment_folder(project, each.name) for each in locks},
            jobs=jobs,
            tag=store_tag(lock.name, lock.version),
            finished=finished,
        )
    value: dict[str, Any] = {
        "name": lock.name,
        "version": lock.version,
        "digest": str(built.image.descriptor.digest),
        "layers": rows,
        "metadata_size": built.image.metadata.size,
    }
    if target is not None:
        report = copy(store, built.image.descriptor, target, tag=tag)
        sent = pusher.sent + report.copied_bytes
        value |= {"destination": destination, "copied_bytes": sent}
    value["seconds"] = round(time.monotonic() - started, 3)
    new = [row for row in rows if not row["reused"]]
    app.output.note(
        f"{lock.name}: {len(rows)} layers, {len(new)} built ({human_size(sum(row['size'] for row in new))}) "
        f"in {value['seconds']:.1f} s"
    )
    return value


def _row(layer: Layer, *, reused: bool) -> dict[str, Any]:
    return {
        "id": layer.id,
        "digest": str(layer.blob.digest),
        "diff_id": str(layer.diff_id),
        "size": layer.blob.size,
        "tar_size": layer.tar_size,
        "reused": reused,
    }


class _Watched:
    """An ArtifactSource that tells what it fetches."""

    def __init__(self, cache: ArtifactCache, meter: Meter) -> None:
        self._cache, self._meter = cache, meter
        self._guard = threading.Lock()

    def file(self, artifact: Artifact) -> Path:
        return self._cache.file(artifact, progress=self._fetched)

    def _fetched(self, _artifact: Artifact, size: int) -> None:
        with self._guard:
            self._meter.advance(size)


class _Pusher:
    """Sends layers to a target while others are built; errors come up at the end of the block."""

    def __init__(self, target: Target | None, store: LayoutTarget) -> None:
        self._target, self._store = target, store
        self._pool = ThreadPoolExecutor(DEFAULT_JOBS, "push")
        self._sent: list[Future[int]] = []
        self.sent = 0

    def push(self, layer: Layer) -> None:
        if self._target is not None:
            self._sent.append(self._pool.submit(self._push, self._target, layer))

    def _push(self, target: Target, layer: Layer) -> int:
        if target.has(layer.blob):
            return 0
        target.push(layer.blob, lambda: self._store.fetch(layer.blob))
        return layer.blob.size

    def __enter__(self) -> _Pusher:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._pool.shutdown(wait=kind is None, cancel_futures=kind is not None)
        if kind is None:
            self.sent = sum(future.result() for future in self._sent)
