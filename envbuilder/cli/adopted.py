"""Start-up traces that images take over from others: asked for, or by ``build``, which finds the parent's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from envbuilder.cli.app import App
from envbuilder.cli.output import Result
from envbuilder.cli.targets import Source, host_platform_of, open_source, writable
from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.image.choice import NoSuchPlatform, plain_manifest
from envbuilder.image.inspect import OpenImage
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.lock.model import Lock
from envbuilder.lock.predicted import Predicted
from envbuilder.mount.startup.newest import newest_trace
from envbuilder.spec.project import environments
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound, SerialTarget, Target

#: Of a trace's pages those that an image must have for it to be taken over unasked: the others are fetched in vain.
_LEAST_SHARE = 0.5


def take_over(app: App, source: Source, image: OpenImage, donor: str, *, dry_run: bool) -> Result:
    """Let the image of ``source`` have the trace of ``donor``, a reference.

    Raises:
        NoTrace, InvalidTrace: there is nothing to take. As ``open_source`` and ``writable``.
    """
    from envbuilder.mount.startup.adopt import adopt, offer  # noqa: PLC0415  not in every build

    other = open_source(app, donor)
    offered = offer(other.target, plain_manifest(other.target, other.what, host_platform_of()), image)
    value: dict[str, Any] = {
        "pinned": source.pinned,
        "from": other.pinned,
        "commands": list(offered.found.trace.commands),
        "share": round(offered.share, 4),
        "page_bytes": round(offered.share * offered.found.trace.pages) * PAGE_SIZE,
        "bundle_bytes": offered.found.hot.size if offered.found.hot else 0,
    }
    if dry_run:
        return Result(f"would take over {_described(offered.share)}", value)
    what = adopt(other.target, offered, writable(app, source), image, made_at_s=int(time.time()))
    app.output.note(f"took over {_described(offered.share)}")
    return Result(str(what.digest), {**value, "digest": str(what.digest)})


def adopt_related(
    app: App, store: LayoutTarget, before: Mapping[str, Descriptor], locks: Sequence[Lock], image: OpenImage
) -> dict[str, Any] | None:
    """Give ``image``, in ``store``, the trace of the version before, else of its parent, if it has none.

    What was recorded of the version before are its own commands: more of the parent's pages would be worth less.

    before: tags of the store and what they named before the build. locks: of the image and of what it extends.
    What was taken over, or None.
    """
    declared = environments(app.need_project())
    found: dict[str, list[Descriptor]] = {}
    for tag, what in before.items():
        # ``ai-dev-1`` is of ``ai-dev``, and no version of ``ai``.
        name = max((name for name in declared if tag.startswith(f"{name}-")), key=len, default="")
        found.setdefault(name, []).append(what)
    taken = (_adopt(app, store, found.get(lock.name, []), locks[-1], image) for lock in reversed(locks))
    return next(filter(None, taken), None)


def adopt_predecessor(
    app: App, target: Target, predicted: Predicted | None, lock: Lock, image: OpenImage
) -> dict[str, Any] | None:
    """The same in ``target``, where ``image`` was sent, from what the lock was ``predicted`` to become before."""
    if predicted is None or isinstance(target, SerialTarget):
        return None
    return _adopt(app, target, [predicted.image], lock, image)


def _adopt(
    app: App, place: Target, donors: Sequence[Descriptor], lock: Lock, image: OpenImage
) -> dict[str, Any] | None:
    others = {what.digest: what for what in donors if what.digest != image.root.digest}
    try:
        if not others or newest_trace(place, image.descriptor):
            return None
        traced = [plain for what in others.values() if (plain := _traced(place, what, lock))]
        if not traced:
            return None
        from envbuilder.mount.startup.adopt import adopt, best_offer  # noqa: PLC0415  not in every build

        offered = best_offer(place, traced, image, least=_LEAST_SHARE)
        if offered is None:
            return None
        what = adopt(place, offered, place, image, made_at_s=offered.made_at_s)
    except EnvbuilderError as error:  # an image is not worse for it
        app.output.note(f"{lock.name}: no start-up trace taken over: {error}")
        return None
    app.output.note(f"{lock.name}: took over {_described(offered.share)}")
    return {"digest": str(what.digest), "share": round(offered.share, 4)}


def _traced(place: Target, what: Descriptor, lock: Lock) -> Descriptor | None:
    """The manifest of ``what`` for the lock's platform, if it has a trace."""
    try:
        plain = plain_manifest(place, what, lock.platform)
    except (NoSuchPlatform, NotFound):
        return None
    return plain if newest_trace(place, plain) else None


def _described(share: float) -> str:
    return f"a start-up trace, of which this image has {share:.0%} of the pages"
