"""``envbuilder build ENV...``: layers and image into the store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click

from envbuilder.cli.adopted import adopt_predecessor, adopt_related
from envbuilder.cli.app import App, common
from envbuilder.cli.bases import base_of, confined
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Meter, Result, human_size
from envbuilder.cli.predictions import check_predicted, read_predicted, record_predicted
from envbuilder.cli.project import artifact_cache, compiling_packages, fresh_locks
from envbuilder.cli.targets import Source, follow, host_platform_of, open_destination, open_source, store_tag
from envbuilder.custom.flavours.names import FLAVOURS
from envbuilder.digest import Descriptor
from envbuilder.image.attached import all_of, copy_attached
from envbuilder.image.build import build_image, document, missing_plans
from envbuilder.image.inspect import open_image
from envbuilder.image.predict import Known, find_image, image_key, prediction, recall, remember
from envbuilder.image.records import Notes, StoreBeside, adopt_records, attach_records
from envbuilder.image.reread import read_layers
from envbuilder.layer.build import default_jobs
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import AnyPlan, plan
from envbuilder.lock.artifact_archive import ArchivedArtifacts, open_archive
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import LayoutReference
from envbuilder.spec.project import environment_folder
from envbuilder.store.copy import copy
from envbuilder.store.early import EarlyPush
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers
from envbuilder.store.target import RangeTarget, SerialTarget, TaggingTarget, Target

#: Where artefacts come from: this machine's indexes and mirrors, or an archive.
_Files: TypeAlias = ArtifactCache | ArchivedArtifacts


@click.command(name="build", epilog="Example: envbuilder build ai --to localhost:5000/env/ai:1")
@click.argument("environments", nargs=-1, required=True, metavar="ENV...", shell_complete=environment_names)
@click.option(
    "--to", "destination", metavar="REF", default="", help="Also push there, each layer as soon as it is built."
)
@click.option("--platform", default="", metavar="P", help="Platform to build for (default: this host's).")
@click.option("--jobs", type=click.IntRange(1), default=default_jobs, help="Layers built at a time (default: cores).")
@click.option(
    "--from-archive", "archive", metavar="REF", default="", help="Take artefacts, and the base, from there alone."
)
@click.option(
    "--flavour",
    type=click.Choice(FLAVOURS),
    default=None,
    help="Also make it in a lazy format of others; --to then gets that image.",
)
@click.option("--record", is_flag=True, help="Take digests that are not as predicted, and record them.")
@click.option("--dry-run", is_flag=True, help="Say which layers would be built, build nothing.")
@common
def command(
    app: App,
    environments: tuple[str, ...],
    destination: str,
    platform: str,
    jobs: int,
    archive: str,
    flavour: str | None,
    record: bool,
    dry_run: bool,
) -> Result:
    """Build the images of environments from their locks, into the store. Prints the digests.

    Layers that the store has are reused; artefacts are fetched only for layers that must be made. What
    lockfiles/ENV/<platform>.digests predicts and the place of --to has whole is not made at all. Locks, SBOMs
    and provenance are attached to the image and go with it. A flavour (eStargz for containerd's stargz-snapshotter,
    zstd:chunked for podman) is an image of its own with the same files, in the store as _FLAVOUR-ENV-VERSION.
    Nothing runs in a container, and no root is needed, but for the interpreter of a base of others that compiles.
    """
    if destination and len(environments) > 1:
        raise click.UsageError("--to takes one environment at a time")
    parsed = Platform.parse(platform) if platform else host_platform_of()
    store = LayoutTarget(app.store_directory, create=True)
    chains = [fresh_locks(app.need_project(), name, parsed) for name in environments]
    if dry_run:
        return _plan(chains, store)
    source = _artifacts(app, archive)
    sent_to = "" if flavour else destination
    values = [_build(app, locks, store, source, sent_to, jobs, record=record, archive=archive) for locks in chains]
    if flavour:
        for locks, value in zip(chains, values, strict=True):
            value["flavour"] = _flavour(app, locks[-1], store, flavour, destination, jobs)
        return Result("\n".join(value["flavour"]["digest"] for value in values), values)
    return Result("\n".join(value["digest"] for value in values), values)


def _flavour(app: App, lock: Lock, store: LayoutTarget, flavour: str, destination: str, jobs: int) -> dict[str, Any]:
    """Make the image of ``lock`` in ``flavour`` and send it to ``destination``, if there is one."""
    from envbuilder.cli.flavoured import as_flavour  # noqa: PLC0415  seldom needed

    tag = store_tag(lock.name, lock.version)
    what = store.lookup(tag)
    source = Source(LayoutReference(store.directory, tag), store, what, f"oci:{store.directory}:{what.digest}")
    made, value = as_flavour(app, source, flavour, lock.platform, tag=f"_{flavour}-{tag}", jobs=jobs)
    if destination:
        target, name = open_destination(app, destination)
        value |= {"destination": destination, "copied_bytes": copy(store, made.what, target, tag=name).copied_bytes}
    return value


def _artifacts(app: App, archive: str) -> _Files:
    if not archive:
        return artifact_cache(app, os.environ)
    source = open_source(app, archive)
    return ArchivedArtifacts(source.target, open_archive(source.target, source.what), app.use_cache())


def _plan(chains: list[tuple[Lock, ...]], store: LayoutTarget) -> Result:
    rows = [
        {"name": locks[-1].name, "layer": plan.id, "artifacts": len(plan.artifacts)}
        for locks in chains
        for plan in missing_plans(locks, store)
    ]
    text = "\n".join(f"{row['name']}: would build {row['layer']}" for row in rows) or "nothing to build"
    return Result(text, rows)


def _build(
    app: App,
    locks: tuple[Lock, ...],
    store: LayoutTarget,
    source: _Files,
    destination: str,
    jobs: int,
    *,
    record: bool,
    archive: str,
) -> dict[str, Any]:
    started = time.monotonic()
    lock, project = locks[-1], app.need_project()
    near = [lock.system.image, *filter(None, [archive])] if lock.system and lock.system.base else []
    target, tag = open_destination(app, destination, near=near) if destination else (None, "")
    here, plans, before = store_tag(lock.name, lock.version), plan(locks), store.tags()
    key = image_key(lock, plans)
    predicted = read_predicted(project, lock)
    expected = None if record else predicted
    promised = expected.image if expected and expected.key == key else recall(store, key)
    noted = expected.records if expected and expected.key == key else None
    # A place that has all of it already: nothing is fetched and nothing made.
    there, whole = _look(target, promised, noted, lock, plans) if target and promised else (None, False)
    found = None if whole else recall(store, key) or promised
    known = find_image(store, found, lock, plans) if found else None
    rows: list[dict[str, Any]] = []
    adopted, sent, was_made = None, 0, False
    if target and there and not known:
        if not (isinstance(target, TaggingTarget) and target.is_tagged(there.descriptor, tag)):
            target.tag(there.descriptor, tag)
        known = there
        if store.has(there.descriptor):  # a trace may have been recorded since that place was sent the image
            sent = follow(store, there.descriptor, target, lock.platform)
    else:
        if known:
            store.tag(known.descriptor, here)
            document(store, locks, known.descriptor, partial(_layers, store, known))
        else:
            store = _beside(store, target, expected, plans)
            known, rows, sent = _make(app, locks, store, source, target, jobs, tag=here, expected=expected)
            remember(store, key, known.descriptor)
            was_made = True
        adopted = adopt_related(app, store, before, locks, known.image)
        records = attach_records(store, locks, known.descriptor, known.predicted, app.cache_directory)
        made = prediction(key, known, records or noted)
        check_predicted(expected, made, lock)
        record_predicted(app, project, lock, made, known=predicted, forced=record)
        if target:
            sent += _send(store, known.descriptor, target, tag, lock.platform)
            adopted = adopted or adopt_predecessor(app, target, predicted, lock, known.image)
    value: dict[str, Any] = {
        "name": lock.name,
        "version": lock.version,
        "digest": str(known.descriptor.digest),
        "bytecode": lock.bytecode,
        "layers": rows if was_made else [_row(layer, reused=True) for layer in known.predicted],
        "metadata_size": known.image.lazy.metadata.size if known.image.lazy else 0,
    }
    if adopted:
        value["adopted_trace"] = adopted
    if target:
        value |= {"destination": destination, "copied_bytes": sent}
    value["seconds"] = round(time.monotonic() - started, 3)
    new = [row for row in rows if not row["reused"]]
    app.output.note(
        f"{lock.name}: {len(plans)} layers, {len(new)} built ({human_size(sum(row['size'] for row in new))}) "
        f"in {value['seconds']:.1f} s"
    )
    if not lock.bytecode:
        app.output.note(f"{lock.name}: its modules are not compiled, as bytecode = false says: each start compiles")
    return value


def _look(
    target: Target, what: Descriptor, noted: Descriptor | None, lock: Lock, plans: Sequence[AnyPlan]
) -> tuple[Known | None, bool]:
    """The image ``what`` where it has all that a build attaches to it, and whether what was ``noted`` of its layers
    is there too: only who has the layers can give that.
    """
    known = find_image(target, what, lock, plans)
    listed = referrers(target, known.descriptor) if known else ()
    if not all_of(listed):
        return None, False
    return known, noted is not None and noted.digest in {each.digest for each in listed}


def _beside(
    store: LayoutTarget, target: Target | None, expected: Predicted | None, plans: Sequence[AnyPlan]
) -> LayoutTarget:
    """The store, with layers that it lacks and need not have: ``target`` has them, and what was noted of them."""
    if target is None or expected is None or isinstance(target, SerialTarget):
        return store
    told = adopt_records(target, expected, plans, store)
    there = target if isinstance(target, RangeTarget) else None
    return StoreBeside(store.directory, told, there) if told.layers else store


def _layers(store: LayoutTarget, known: Known) -> list[Layer]:
    lazy = known.image.lazy
    return read_layers(store, lazy.devices if lazy else known.image.manifest.layers, known.predicted)


def _send(store: LayoutTarget, what: Descriptor, target: Target, tag: str, platform: Platform) -> int:
    """Copy an image, what was attached to it and its start-up trace; bytes moved."""
    sent = copy(store, what, target, tag=tag, finish=False).copied_bytes + copy_attached(store, what, target)
    sent += follow(store, what, target, platform)
    if isinstance(target, SerialTarget):
        target.finish(what)
    return sent


def _make(
    app: App,
    locks: tuple[Lock, ...],
    store: LayoutTarget,
    source: _Files,
    target: Target | None,
    jobs: int,
    *,
    tag: str,
    expected: Predicted | None,
) -> tuple[Known, list[dict[str, Any]], int]:
    """Build what is missing, and send each layer as soon as it is there: the image, a row a layer, bytes sent."""
    lock, project = locks[-1], app.need_project()
    base = base_of(app, locks, archive=source if isinstance(source, ArchivedArtifacts) else None)
    rows: list[dict[str, Any]] = []
    needed = {artifact.digest: artifact for plan in missing_plans(locks, store) for artifact in plan.artifacts}
    absent = sum(artifact.size for artifact in needed.values() if not source.has(artifact))
    notes = Notes(store, locks, app.cache_directory)
    with app.output.stage(f"{lock.name}: fetch", absent) as meter, EarlyPush(store, target) as early:

        def finished(layer: Layer, reused: bool) -> None:
            made = PredictedLayer(
                id=layer.id,
                key=layer.plan_key,
                diff_id=layer.listed.diff_id,
                digest=layer.listed.blob.digest,
                size=layer.listed.blob.size,
            )
            check_predicted(expected, made, lock)
            rows.append(_row(made, reused=reused))
            for blob in {layer.listed.blob.digest: layer.listed.blob, layer.blob.digest: layer.blob}.values():
                early.push(blob)
            if noted := notes.of(made, layer):
                early.push(noted)
            if not reused:
                app.output.note(f"{layer.id}: built, {human_size(layer.blob.size)}")

        built = build_image(
            locks,
            store,
            _Watched(source, meter),
            cache=app.cache_directory,
            folders={each.name: environment_folder(project, each.name) for each in locks},
            jobs=jobs,
            tag=tag,
            finished=finished,
            helper=compiling_packages(project, lock, host_platform_of()),
            agreed={layer.key for layer in expected.layers} if expected else frozenset(),
            base=base,
            confined=partial(confined, app, locks, base),
            told=store.told.parts if isinstance(store, StoreBeside) else None,
        )
    what = built.image.descriptor
    return Known(descriptor=what, image=open_image(store, what, lock.platform)), rows, early.sent


def _row(layer: PredictedLayer, *, reused: bool) -> dict[str, Any]:
    return {
        "id": layer.id,
        "digest": str(layer.digest),
        "diff_id": str(layer.diff_id),
        "size": layer.size,
        "reused": reused,
    }


class _Watched:
    """An ArtifactSource that tells what it fetches."""

    def __init__(self, source: _Files, meter: Meter) -> None:
        self._source, self._meter = source, meter
        self._guard = threading.Lock()

    def file(self, artifact: Artifact) -> Path:
        return self._source.file(artifact, progress=self._fetched)

    def _fetched(self, _artifact: Artifact, size: int) -> None:
        with self._guard:
            self._meter.advance(size)
