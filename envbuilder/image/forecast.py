"""What ``build --to`` would make and send, found by asking store and target; nothing is made, fetched or sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

from envbuilder.digest import Descriptor, Digest
from envbuilder.image.attached import COPIED, all_attached, all_of
from envbuilder.image.predict import Known, find_image, image_key, recall
from envbuilder.layer.base import BasePlan
from envbuilder.layer.build import has_layer, known_blob
from envbuilder.layer.model import Recipe
from envbuilder.lock.model import Lock
from envbuilder.lock.predicted import Predicted
from envbuilder.oci import media_types
from envbuilder.oci.artifact import plain
from envbuilder.store.copy import copy_plan
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers
from envbuilder.store.target import MountingTarget, Target

#: Questions asked at a time.
_TOGETHER = 8
#: "": the target has it. "mount": its registry was seen to have it elsewhere, and may take it from there.
#: "send": its bytes go over the wire. "unknown": nobody recorded what it becomes, so it can be asked for nowhere.
Way: TypeAlias = Literal["", "mount", "send", "unknown"]
#: Finds the start-up trace of a manifest that goes along with it, if there is one.
TraceOf: TypeAlias = Callable[[Target, Descriptor], Descriptor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerForecast:
    """A layer: whether it would be made, its blob if anybody recorded it, and how it would reach the target."""

    id: str
    build: bool
    blob: Descriptor | None
    way: Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """layers: base first. beside: bytes that a push sends besides them (manifests, configs, the merged metadata,
    what is attached), each blob once; None when only a build can tell.
    """

    layers: tuple[LayerForecast, ...]
    beside: int | None


def forecast(
    lock: Lock,
    plans: Sequence[Recipe],
    predicted: Predicted | None,
    store: LayoutTarget,
    target: Target | None,
    trace_of: TraceOf = lambda *_: None,
) -> Forecast:
    """What building ``lock`` in ``store`` and sending it to ``target`` would do; of what is sent nothing without one.

    A trace that the build would take over from another image is not counted.

    Raises:
        ForeignImage: store or target has something else under the predicted digest. UnavailableError.
    """
    key = image_key(lock, plans)
    ours = predicted if predicted and predicted.key == key else None
    promised = ours.image if ours else recall(store, key)
    found = recall(store, key) or promised
    here = find_image(store, found, lock, plans) if found else None
    if here:
        return _of_image(here, store, target, trace_of)
    there = find_image(target, promised, lock, plans) if target and promised else None
    if target and there and all_of(referrers(target, there.descriptor)):
        rows = _of_known(there, {layer.digest: "" for layer in there.image.manifest.layers})
        return Forecast(layers=rows, beside=0)
    return Forecast(layers=_of_recipes(plans, predicted, store, target), beside=None if target else 0)


def _of_known(image: Known, ways: Mapping[Digest, Way]) -> tuple[LayerForecast, ...]:
    pairs = zip(image.predicted, image.image.manifest.layers, strict=True)
    return tuple(LayerForecast(id=row.id, build=False, blob=blob, way=ways[blob.digest]) for row, blob in pairs)


def _of_image(image: Known, store: LayoutTarget, target: Target | None, trace_of: TraceOf) -> Forecast:
    """Of an image that ``store`` has whole: exactly what a copy of it would move."""
    layers = {layer.digest for layer in image.image.manifest.layers}
    if target is None:
        return Forecast(layers=_of_known(image, dict.fromkeys(layers, "")), beside=0)
    plan = copy_plan(store, image.descriptor, target)
    lacking = {blob.digest for blob in plan.blobs}
    ways: dict[Digest, Way] = {
        layer.digest: _way(layer, target) if layer.digest in lacking else "" for layer in image.image.manifest.layers
    }
    sizes = {what.digest: what.size for what in (*plan.blobs, *(manifest for manifest, _ in plan.manifests))}
    if trace := trace_of(store, image.image.descriptor):
        sizes |= _lacking([trace], image.image.descriptor, store, target)
    attached = _attached(image.descriptor, store, target)
    beside = None if attached is None else sum((sizes | attached)[each] for each in (sizes | attached).keys() - layers)
    return Forecast(layers=_of_known(image, ways), beside=beside)


def _attached(image: Descriptor, store: LayoutTarget, target: Target) -> dict[Digest, int] | None:
    """Sizes of what a build attaches to ``image`` and ``target`` lacks; None while it is still to be made."""
    listed = [each for each in referrers(store, image) if each.artifact_type in COPIED]
    if not all_attached(store, image) or media_types.RECORDS not in {each.artifact_type for each in listed}:
        return None
    return _lacking(listed, image, store, target)


def _lacking(
    listed: Iterable[Descriptor], subject: Descriptor, store: LayoutTarget, target: Target
) -> dict[Digest, int]:
    """Sizes of what ``target`` lacks of the referrers ``listed`` of ``subject``."""
    there = {each.digest for each in referrers(target, subject)}
    plans = [copy_plan(store, plain(each), target) for each in listed if each.digest not in there]
    return {
        what.digest: what.size
        for plan in plans
        for what in (*plan.blobs, *(manifest for manifest, _ in plan.manifests))
    }


def _of_recipes(
    plans: Sequence[Recipe], predicted: Predicted | None, store: LayoutTarget, target: Target | None
) -> tuple[LayerForecast, ...]:
    rows = {row.key: row for row in predicted.layers} if predicted else {}
    usable = _usable(predicted, target)

    def one(plan: Recipe) -> LayerForecast:
        way: Way
        row = rows.get(plan.key)
        if isinstance(plan, BasePlan):
            # Its layer is known by the lock; the device is sent with it, and is no more than that.
            there = target is not None and target.has(plan.blob)
            way = "" if there or target is None else _way(plan.blob, target)
            build = not has_layer(plan, store) and not (there and plan.key in usable)
            return LayerForecast(id=plan.id, build=build, blob=plan.blob, way=way)
        blob = known_blob(plan, store)
        if blob is None and row is not None:
            blob = Descriptor(media_type=media_types.OCI_LAYER_TAR_ZSTD, digest=row.digest, size=row.size)
        if blob is None:
            return LayerForecast(id=plan.id, build=True, blob=None, way="unknown" if target else "")
        there = target is not None and target.has(blob)
        build = not store.has(blob) and not (there and plan.key in usable)
        way = "" if there or target is None else _way(blob, target)
        return LayerForecast(id=plan.id, build=build, blob=blob, way=way)

    with ThreadPoolExecutor(_TOGETHER, "forecast") as pool:
        return tuple(pool.map(one, plans))


def _usable(predicted: Predicted | None, target: Target | None) -> AbstractSet[Digest]:
    """Keys of layers that need not be made here if ``target`` has them: what was noted of them is there too."""
    if predicted is None or target is None or predicted.records is None or not target.has(predicted.records):
        return frozenset()
    return {row.key for row in predicted.layers}


def _way(blob: Descriptor, target: Target) -> Way:
    return "mount" if isinstance(target, MountingTarget) and target.may_mount(blob) else "send"
