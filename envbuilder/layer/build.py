"""Plans become layers in a store, in parallel processes; what the store has already is reused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest
from envbuilder.errors import HostError, IntegrityError
from envbuilder.layer.build_processes import builders, without_collector
from envbuilder.layer.compile_server import close_idle
from envbuilder.layer.frames import FrameWriter
from envbuilder.layer.limits import check_size
from envbuilder.layer.model import Layer, LayerPlan, Recipe
from envbuilder.layer.record import dump_layer, load_blobs, load_layer
from envbuilder.layer.tar import write_tar
from envbuilder.lock.model import Artifact, Wheel
from envbuilder.lock.source import ArtifactSource
from envbuilder.store.layout import LayoutTarget

#: CPU time of a byte of a wheel of modules alone, by that of any other artefact's: 600 ms a MB (transformers), of
#: which 80 percent compile them; cudnn takes 12, torch 30.
_PURE_WEIGHT = 50
#: Artefacts fetched at a time: as many as indexes serve gladly.
_FETCHES = 8


class BuildProcessDied(HostError):
    """A build process ended without an answer: killed, most often for want of memory."""


class DamagedArtifact(IntegrityError):
    """A file of the artefact cache is no longer the bytes that its name promises."""


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """An ArtifactSource of files that were fetched and verified before: it crosses to another process."""

    files: Mapping[Digest, Path]

    def file(self, artifact: Artifact) -> Path:
        return self.files[artifact.digest]


def has_layer(plan: Recipe, store: LayoutTarget) -> bool:
    """Whether ``store`` has what ``plan`` became earlier: ``find_layer`` without the paths."""
    blobs = known_blobs(plan, store)
    return bool(blobs) and all(map(store.has, blobs))


def known_blobs(plan: Recipe, store: LayoutTarget) -> tuple[Descriptor, ...]:
    """What ``plan`` became earlier, whether or not ``store`` still holds it: one blob, of a layer of others two."""
    data = store.records.get(plan.key.hex)
    return load_blobs(data, key=plan.key) if data else ()


def known_blob(plan: Recipe, store: LayoutTarget) -> Descriptor | None:
    """The first of ``known_blobs``."""
    return next(iter(known_blobs(plan, store)), None)


def find_layer(plan: Recipe, store: LayoutTarget) -> Layer | None:
    """The layer that ``plan`` became earlier, if ``store`` still holds it."""
    data = store.records.get(plan.key.hex)
    layer = load_layer(data, key=plan.key) if data else None
    # Two environments may call one recipe by two names.
    if layer is None or not (store.has(layer.blob) and store.has(layer.listed.blob)):
        return None
    return replace(layer, id=plan.id)


def build_layer(
    plan: LayerPlan, artifacts: ArtifactSource, store: LayoutTarget, *, cache: Path, helpers: int = 0
) -> Layer:
    """Make the layer of ``plan`` in ``store``, and remember it under its key. Arguments and errors: ``make_layer``."""
    layer = make_layer(plan, artifacts, store, cache=cache, helpers=helpers)
    store.records.put(plan.key.hex, dump_layer(layer))
    return layer


def make_layer(
    plan: LayerPlan, artifacts: ArtifactSource, store: LayoutTarget, *, cache: Path, helpers: int = 0
) -> Layer:
    """Make the layer of ``plan`` in ``store``.

    The bytes are written once, straight into the store; nothing is left there on failure.
    helpers: processes that may compress and hash beside this one.

    Raises:
        whatever reading the artefacts raises; HostError: the disk is full or read-only. LayerTooLarge.
    """
    with store.begin() as blob, FrameWriter(blob, helpers=helpers) as writer:
        placed = write_tar(plan.entries(artifacts, cache=cache), writer)
        framed = writer.finish()
        check_size(plan.id, framed.blob.size)
        blob.commit(framed.blob)
    return Layer(
        id=plan.id,
        blob=framed.blob,
        diff_id=framed.diff_id,
        plan_key=plan.key,
        tar_size=framed.tar_size,
        placed=placed,
    )


def build_layers(
    plans: Sequence[LayerPlan],
    store: LayoutTarget,
    artifacts: ArtifactSource,
    *,
    cache: Path,
    jobs: int,
    finished: Callable[[Layer, bool], None] = lambda _layer, _reused: None,
) -> tuple[Layer, ...]:
    """The layer of each plan, in the plans' order.

    Artefacts of a layer are fetched only when the layer must be made, and a layer is begun as soon
    as its own are here, the largest first; meanwhile the records of the others are read. ``finished(layer,
    reused)`` is called from the caller's thread. The first error cancels the rest.
    """
    layers: dict[str, Layer] = {}
    missing = [plan for plan in plans if not has_layer(plan, store)]
    building = {plan.id for plan in missing}

    def read_known() -> None:
        for plan in plans:
            if plan.id not in building and plan.id not in layers and (layer := find_layer(plan, store)):
                layers[plan.id] = layer
                finished(layer, True)

    if not missing:
        read_known()
    while missing := missing or [plan for plan in plans if plan.id not in layers]:
        building.update(plan.id for plan in missing)  # in a second round: the paths of their records are damaged
        if len(plans) == 1:  # with nothing to read meanwhile: no process of its own, which takes 0.1 s to start
            made: Iterable[Layer] = [_build_here(missing[0], store, artifacts, cache, jobs)]
        else:
            made = _build_missing(missing, store, artifacts, cache, jobs, begun=read_known)
        for layer in made:
            layers[layer.id] = layer
            finished(layer, False)
        missing = []
    return tuple(layers[plan.id] for plan in plans)


def _weight(plan: LayerPlan) -> int:
    """How long it takes, by the bytes of a binary package that would take as long."""
    return sum(
        artifact.size * (_PURE_WEIGHT if isinstance(artifact, Wheel) and artifact.file.endswith("-none-any.whl") else 1)
        for artifact in plan.artifacts
    )


@without_collector()
def _build_here(plan: LayerPlan, store: LayoutTarget, artifacts: ArtifactSource, cache: Path, jobs: int) -> Layer:
    with _fetchers() as fetchers:
        fetched = dict(
            zip([a.digest for a in plan.artifacts], fetchers.map(artifacts.file, plan.artifacts), strict=True)
        )
    try:
        return _build(plan, LocalFiles(fetched), store, cache, jobs - 1)
    finally:
        close_idle()  # a process of its own would have ended now, and they with it


def _build_missing(
    plans: Sequence[LayerPlan],
    store: LayoutTarget,
    artifacts: ArtifactSource,
    cache: Path,
    jobs: int,
    *,
    begun: Callable[[], None],
) -> Iterator[Layer]:
    """The layer of each of ``plans``, in the order of their ends; ``begun`` is called once, when the first is made."""
    # A parent's layers come first: its computed layer is then made while the child's are.
    owners = list(dict.fromkeys(plan.id.partition("/")[0] for plan in plans))
    weights = {plan.id: _weight(plan) for plan in plans}
    by_size = sorted(plans, key=lambda plan: (owners.index(plan.id.partition("/")[0]), -weights[plan.id], plan.id))
    # What would run on when all else is done uses more than one core itself; else layers side by side fill them.
    helpers = {plan.id: jobs - 1 if weights[plan.id] * jobs > sum(weights.values()) else 0 for plan in plans}
    with _fetchers() as fetchers, builders(min(jobs, len(plans)), store) as pool:
        fetches = {
            artifact.digest: fetchers.submit(artifacts.file, artifact)
            for plan in by_size
            for artifact in plan.artifacts
        }
        waiting = list(by_size)
        running: set[Future[Any]] = set()
        told = False
        while waiting or running:
            for plan in list(waiting):
                needed = [fetches[artifact.digest] for artifact in plan.artifacts]
                if all(fetch.done() for fetch in needed):
                    files = LocalFiles({a.digest: fetches[a.digest].result() for a in plan.artifacts})
                    work = (plan, files, store.directory, cache, helpers[plan.id])
                    running.add(pool.submit(_build_in_process, *work))
                    waiting.remove(plan)
            fetching = {fetch for plan in waiting for a in plan.artifacts if not (fetch := fetches[a.digest]).done()}
            if running and not told:
                told = True
                begun()
            done, _ = wait(running | fetching, return_when=FIRST_COMPLETED)
            for future in done:
                if future in running:
                    running.remove(future)
                    yield _answer(future, store)
                else:
                    future.result()


def _answer(future: Future[tuple[str, str]], store: LayoutTarget) -> Layer:
    try:
        plan_id, key = future.result()
    except Exception as error:
        if type(error).__name__ == "BrokenProcessPool":
            raise BuildProcessDied(
                "build: a process ended without an answer", hint="Give the host more memory, or build with --jobs 1."
            ) from error
        raise
    data = store.records.get(key)
    layer = load_layer(data, key=Digest("sha256:" + key)) if data else None
    assert layer is not None, plan_id
    return layer


def _build_in_process(
    plan: LayerPlan, artifacts: LocalFiles, directory: Path, cache: Path, helpers: int
) -> tuple[str, str]:
    # The paths of a large layer are megabytes: they go through the record, not through the pipe.
    layer = _build(plan, artifacts, LayoutTarget(directory), cache, helpers)
    return layer.id, layer.plan_key.hex


def _build(plan: LayerPlan, artifacts: LocalFiles, store: LayoutTarget, cache: Path, helpers: int) -> Layer:
    try:
        return build_layer(plan, artifacts, store, cache=cache, helpers=helpers)
    except IntegrityError:
        drop_damaged(plan.artifacts, artifacts)  # is it the package, or our copy of it?
        raise


def drop_damaged(artifacts: Iterable[Artifact], files: ArtifactSource) -> None:
    """Remove the files of ``artifacts`` that are no longer what they were when they were verified.

    Raises:
        DamagedArtifact: there was one.
    """
    for artifact in artifacts:
        file = files.file(artifact)
        sha256 = hashlib.sha256()
        with file.open("rb") as stream:
            while block := stream.read(BLOCK_SIZE):
                sha256.update(block)
        if sha256.hexdigest() != artifact.digest.hex:
            file.unlink(missing_ok=True)
            raise DamagedArtifact(
                f"{file}: {artifact.name} {artifact.version}: want {artifact.digest}, "
                f"got sha256:{sha256.hexdigest()}: it changed on this disk after it was verified",
                hint="Build again: the file is removed and will be fetched anew. Look into the state of the disk.",
            )


@contextmanager
def _fetchers() -> Iterator[ThreadPoolExecutor]:
    fetchers = ThreadPoolExecutor(_FETCHES, "fetch")
    try:
        yield fetchers
    except BaseException:
        fetchers.shutdown(wait=False, cancel_futures=True)
        raise
    fetchers.shutdown()


def default_jobs() -> int:
    """Build processes that this machine has cores for."""
    return len(os.sched_getaffinity(0))
