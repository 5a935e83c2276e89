"""A trace is of layers, so that it serves other images with these layers: a child's, or the next version's.

Trace and bundle are taken over as they are, blob for blob: a registry that has them has nothing more to store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from envbuilder.digest import Descriptor
from envbuilder.errors import RefusedError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.startup.newest import made_at, newest_trace
from envbuilder.mount.startup.trace import InvalidTrace
from envbuilder.mount.startup.traces import FoundTrace, attach_found, read_recorded
from envbuilder.store.target import Target


class NoTrace(RefusedError):
    """An image has no start-up trace that another could take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A trace as it was recorded with another image; ``share``: of its pages those that are of this image's layers."""

    found: FoundTrace
    share: float
    made_at_s: int


def offer(source: Target, donor: Descriptor, image: OpenImage) -> Offer:
    """What the newest trace of the manifest ``donor`` would be to ``image``.

    Raises:
        NoTrace: there is none, or it is of other layers. InvalidTrace: it is malformed.
        UnavailableError, ...: the source.
    """
    what = newest_trace(source, donor)
    if what is None:
        raise NoTrace(f"{source.name}: {donor.digest} has no start-up trace", hint="Run: envbuilder trace REF.")
    found = read_recorded(source, what, donor)
    try:
        mine = found.on(image)
    except InvalidTrace as error:
        raise NoTrace(
            f"{source.name}: {donor.digest}: want a start-up trace of layers that {image.descriptor.digest} has, "
            "got one of others",
            hint="Record one of its own: envbuilder trace REF.",
        ) from error
    share = sum(pages.count for pages in mine.trace.own) / found.trace.pages
    # A bundle that no start of the image can read (of an older trace, without sizes) would only lie there.
    return Offer(found=replace(found, hot=mine.hot), share=share, made_at_s=made_at(what))


def best_offer(source: Target, donors: Iterable[Descriptor], image: OpenImage, *, least: float) -> Offer | None:
    """The trace of one of ``donors`` with the largest share, the newest of several; None: none has ``least``."""
    offers = filter(None, (_offer(source, donor, image) for donor in donors))
    best = max(offers, key=lambda each: (each.share, each.made_at_s), default=None)
    return best if best and best.share >= least else None


def _offer(source: Target, donor: Descriptor, image: OpenImage) -> Offer | None:
    try:
        return offer(source, donor, image)
    except (NoTrace, InvalidTrace):
        return None


def adopt(source: Target, offered: Offer, target: Target, image: OpenImage, *, made_at_s: int) -> Descriptor:
    """Store what ``source`` offered beside ``image`` in ``target``, in place of older traces.

    Raises:
        NotFound: ``target`` has no such image. DigestMismatch, UnavailableError, ...: as any copy.
    """
    hot = offered.found.hot
    bundle = (hot, partial(source.fetch, hot)) if hot else None
    return attach_found(target, image, offered.found.trace, bundle, made_at_s=made_at_s)
