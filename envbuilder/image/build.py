"""A lock becomes an image in a store: layers in parallel, then what is computed from them, then the documents."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import SpecError
from envbuilder.image.assemble import Image, assemble
from envbuilder.image.attached import all_attached
from envbuilder.image.base import hold_base
from envbuilder.image.overlaps import check_overlaps, check_shared
from envbuilder.layer.base import BasePlan
from envbuilder.layer.build import build_layer, build_layers, find_layer, has_layer
from envbuilder.layer.build_processes import without_collector
from envbuilder.layer.limits import check_balance, parts_of
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import AnyPlan, WheelPlan, compiled_by_base, compiled_here, plan
from envbuilder.layer.prefix import PREFIX
from envbuilder.layer.top import TopPlan
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Deb, Lock
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target

#: Called with each layer as soon as it is in the store, and whether it was there before.
Finished = Callable[[Layer, bool], None]
#: Debian's own default, the prefix in front (login.defs, ENV_PATH).
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that is in the store, and which of its layers were there before."""

    image: Image
    reused: frozenset[str]  # layer ids


def missing_plans(locks: Sequence[Lock], store: LayoutTarget) -> tuple[AnyPlan, ...]:
    """The plans of layers that a build would have to make: what ``--dry-run`` shows."""
    return tuple(each for each in plan(locks) if not has_layer(each, store))


@without_collector()
def build_image(
    locks: Sequence[Lock],
    store: LayoutTarget,
    artifacts: ArtifactSource,
    *,
    cache: Path,
    folders: Mapping[str, Path],
    jobs: int,
    tag: str,
    finished: Finished = lambda _layer, _reused: None,
    documents: bool = True,
    helper: tuple[Sequence[Deb], Platform] | None = None,
    agreed: AbstractSet[Digest] = frozenset(),
    base: Callable[[], Target] | None = None,
    confined: Callable[[], Runner] | None = None,
    told: Mapping[str, bytes] | None = None,
) -> Built:
    """The image of the last of ``locks`` in ``store``, under ``tag``; the others are what it extends.

    cache: folder of this machine for what is derived from artefacts. folders: environment -> its folder.
    documents: attach the locks, SBOMs and provenance (image/attached.py).
    helper: this host's platform and packages locked for it, whose interpreter compiles for a foreign one.
    agreed: keys of layers that an image had together: no need to look for conflicts between those again.
    base: where the layers of an image of others are, asked for what the store lacks. confined: what starts its
        interpreter, which compiles; asked for where that must. told: what others say of packages (image/records.py).

    Raises:
        TooDeep, LayerTooLarge, Lopsided: see layer/limits.py.
        Conflict, SharedPath: two packages claim one path. Whatever fetching, reading and storing raise.
    """
    plans = plan(locks) if helper is None else compiled_here(plan(locks), *helper)
    reused: set[str] = set()
    by_id: dict[str, Layer] = {}
    layers: list[Layer] = []

    def note(layer: Layer, was_there: bool) -> None:  # noqa: FBT001  the callback's signature
        by_id[layer.id] = layer
        if was_there:
            reused.add(layer.id)
        elif documents:
            _documents()  # takes 0.05 s to load, and the image of a new layer needs it: now, while others are made
        finished(layer, was_there)
        go_on()

    def go_on() -> None:
        """Put layers in their order, and compute each computed one as soon as all below it are here."""
        while len(layers) < len(plans):
            each = plans[len(layers)]
            if isinstance(each, TopPlan) and each.id not in by_id:
                top = each.on([layer.placed for layer in layers], folders[each.lock.name], told)
                found = find_layer(top, store)
                note(found or build_layer(top, artifacts, store, cache=cache), found is not None)
                return
            if each.id not in by_id:
                return
            layers.append(by_id[each.id])

    bases = [each for each in plans if isinstance(each, BasePlan)]
    hold_base(bases, store, base or _nowhere, cache=cache, helpers=jobs, finished=note)
    if confined and any(
        isinstance(each, WheelPlan) and each.compilation.theirs and not has_layer(each, store) for each in plans
    ):
        plans = compiled_by_base(plans, confined())
    artefact_plans = [each for each in plans if not isinstance(each, TopPlan | BasePlan)]
    build_layers(artefact_plans, store, artifacts, cache=cache, jobs=jobs, finished=note)
    wheel_plans = [each for each in artefact_plans if isinstance(each, WheelPlan)]
    known = {each.key for each in artefact_plans if each.id in reused} & agreed
    check_overlaps(locks[-1], wheel_plans, by_id, artifacts, agreed=known)
    check_shared(artefact_plans, by_id, artifacts, agreed=known)
    check_balance(locks[-1].name, layers, {each.id: len(parts_of(each)) for each in plans})
    image = _assemble(locks[-1], layers)
    for what, data in image.blobs.items():
        store.push(what, partial(io.BytesIO, data))
    store.tag(image.descriptor, tag)
    if documents:
        document(store, locks, image.descriptor, lambda: layers)
    return Built(image=image, reused=frozenset(reused))


def document(
    store: LayoutTarget, locks: Sequence[Lock], image: Descriptor, layers: Callable[[], Sequence[Layer]]
) -> None:
    """Attach to ``image``, which is in ``store``, what a build attaches, unless all of that is there."""
    if not all_attached(store, image):
        _documents().attach_documents(store, locks, image, layers())


def _documents() -> ModuleType:
    return importlib.import_module("envbuilder.image.documents")


def _nowhere() -> Target:
    raise SpecError("base: nothing says where its image is")


def _assemble(lock: Lock, layers: Sequence[Layer]) -> Image:
    """The image; what the config of a base of others says stays, but for its command and what the lock says."""
    base = lock.system.base if lock.system else None
    theirs = dict(base.env) if base else {}
    env = {**theirs, "PATH": f"/{PREFIX}/bin:{theirs.get('PATH') or _PATH}", "VIRTUAL_ENV": f"/{PREFIX}", **lock.env}
    return assemble(
        platform=lock.platform,
        layers=layers,
        env=env,
        labels={**dict(base.labels if base else ()), media_types.TITLE: lock.name, media_types.VERSION: lock.version},
        entrypoint=base.entrypoint if base else (),
        command=("python3",),
        working_dir=(base.working_dir if base else "") or "/",
        user=base.user if base else "",
        lock_digest=digest(lock),
        spec_digest=lock.spec_digest,
    )
