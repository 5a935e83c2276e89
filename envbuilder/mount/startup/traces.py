"""Traces beside their images: find one, attach one.

They are referrers of the platform's plain manifest (OCI distribution-spec 1.1). Nothing here is trusted: a
trace that is malformed, of another image or of another shape is as good as none.
"""

from __future__ import annotations

import hashlib
import io
import logging
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, InvalidDigest, describe
from envbuilder.errors import EnvbuilderError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.startup.early import EarlyBundle
from envbuilder.mount.startup.newest import MAX_DIGITS, newest_trace
from envbuilder.mount.startup.trace import MAX_STORED, InvalidTrace, Trace, parse_trace, to_pages
from envbuilder.oci import media_types
from envbuilder.store.begun import begun
from envbuilder.store.documents import Documents
from envbuilder.store.referrers import attach, read_referrer, referrers, unlist
from envbuilder.store.target import Opener, RangeTarget, Target
from envbuilder.store.whole import fetch_whole

_log = logging.getLogger(__name__)

_HOT = media_types.HOT_BUNDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrace:
    """A trace of an image, parsed; ``hot``: its bundle, or None."""

    trace: Trace
    hot: Descriptor | None

    def on(self, image: OpenImage) -> FoundTrace:
        """The same for ``image``, which need not be what was recorded.

        Raises:
            InvalidTrace: no layer of it was.
        """
        trace = self.trace.on([layer.digest for layer in image.manifest.layers])
        return FoundTrace(trace=trace, hot=self.hot if trace.frames else None)

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process go the columns of its thousands of ranges: a quarter of the time that parsing takes."""
        columns = [array("Q", column).tobytes() for column in zip(*self.trace.ranges, strict=True)]
        return _reopened, (replace(self.trace, ranges=()), columns, self.hot)


def _reopened(trace: Trace, columns: Sequence[bytes], hot: Descriptor | None) -> FoundTrace:
    ranges = tuple(map(to_pages, zip(*(array("Q", column) for column in columns), strict=True)))
    return FoundTrace(trace=replace(trace, ranges=ranges), hot=hot)


class TraceSearch:
    """Looks for the trace of an image in a thread of its own, while the rest of the image is read."""

    def __init__(self, source: RangeTarget, known: Documents | None = None) -> None:
        """known: what this node has read; the bundle of a trace that is not among it is asked for at once."""
        self._source, self._known = source, known
        self._bundle = EarlyBundle(source)
        self._found: Future[FoundTrace | None] | None = None

    def begin(self, subject: Descriptor) -> None:
        """Look for the newest trace of the manifest ``subject``."""
        self._found = begun(partial(recorded_of, self._source, subject, self._named), "trace")

    def early(self) -> int:
        """The end of a pipe that the bundle comes through, which is the caller's now; -1: it does not come."""
        return self._bundle.take()

    def _named(self, trace: Descriptor, hot: Descriptor | None) -> None:
        # A node that has the trace has most likely its pages, too.
        if self._known and hot and not self._known.find(trace.digest):
            self._bundle.begin(hot)

    def result(self, image: OpenImage) -> FoundTrace | None:
        """The trace, once it is here; None when there is none of ``image``, or none that can be read."""
        if self._found is None:
            self.begin(image.descriptor)
            assert self._found is not None
        try:
            found = self._found.result()
            return found.on(image) if found else None
        except EnvbuilderError as error:
            _log.warning("%s: started without its trace: %s", image.descriptor.digest, error)
            return None


def find_trace(source: RangeTarget, image: OpenImage) -> FoundTrace | None:
    """The newest trace of ``image`` that ``source`` has; None when there is none, or none that can be read."""
    return TraceSearch(source).result(image)


def recorded_of(
    source: Target, subject: Descriptor, named: Callable[[Descriptor, Descriptor | None], None] = lambda *_: None
) -> FoundTrace | None:
    """The newest trace beside the manifest ``subject``, as it was recorded; ``named``: told first where it is.

    Raises:
        InvalidTrace: malformed. NotFound, UnavailableError, ...: as any reading.
    """
    what = newest_trace(source, subject, at_once=True)
    return read_recorded(source, what, subject, named) if what else None


def read_recorded(
    source: Target,
    what: Descriptor,
    subject: Descriptor,
    named: Callable[[Descriptor, Descriptor | None], None] = lambda *_: None,
) -> FoundTrace:
    """The trace ``what`` that is listed for the manifest ``subject``; else as ``recorded_of``."""
    where = f"{source.name}: {what.digest}"
    blob, hot = _noted(what) or _named(source, what, subject)
    named(blob, hot)
    stored = _read(source, blob, MAX_STORED)
    trace = parse_trace(stored, source=where)
    if not trace.frames:
        hot = None
    if hot is not None and hot.size != trace.proofs + sum(frame.size for frame in trace.frames):
        raise InvalidTrace(f"{where}: its bundle has {hot.size} bytes, its trace names others")
    return FoundTrace(trace=trace, hot=hot)


def _noted(what: Descriptor) -> tuple[Descriptor, Descriptor | None] | None:
    """The trace and its bundle as the list of referrers names them; None where it does not.

    The manifest would say no more: neither is trusted (decisions/0007).
    """
    found: list[Descriptor] = []
    for name, media_type in ((media_types.TRACE_STORED, media_types.TRACE), (media_types.TRACE_HOT, _HOT)):
        digest, _, size = what.annotations.get(name, "").partition(" ")
        if not size.isdecimal() or len(size) >= MAX_DIGITS:
            break
        try:
            found.append(Descriptor(media_type=media_type, digest=Digest.parse(digest), size=int(size)))
        except InvalidDigest:
            return None
    return (found[0], found[1] if len(found) > 1 else None) if found else None


def _named(source: Target, what: Descriptor, subject: Descriptor) -> tuple[Descriptor, Descriptor | None]:
    """The same as the artifact's manifest names them."""
    layers = read_referrer(source, what, subject).layers
    if not layers:
        raise InvalidTrace(f"{source.name}: {what.digest}: an artifact without a trace")
    return layers[0], layers[1] if len(layers) > 1 else None


def attach_trace(
    target: Target, image: OpenImage, trace: Trace, bundle: Path | None, *, made_at_s: int = 0
) -> Descriptor:
    """Store ``trace`` beside ``image``, in place of older ones; ``bundle``: the file with its hot bundle.

    made_at_s: seconds since the epoch, by which the newest is found where older ones cannot be taken away.
    """
    hot = (_describe_file(bundle), lambda: bundle.open("rb")) if bundle else None
    return attach_found(target, image, trace, hot, made_at_s=made_at_s)


def attach_found(
    target: Target, image: OpenImage, trace: Trace, hot: tuple[Descriptor, Opener] | None, *, made_at_s: int
) -> Descriptor:
    """The same; ``hot``: the bundle, wherever it is."""
    stored = trace.dump()
    blobs: list[tuple[Descriptor, Opener]] = [(describe(stored, media_types.TRACE), partial(io.BytesIO, stored))]
    if hot is not None:
        blobs.append(hot)
    notes = {media_types.TRACE_MADE: str(made_at_s)}
    for name, (blob, _) in zip((media_types.TRACE_STORED, media_types.TRACE_HOT), blobs, strict=False):
        notes[name] = f"{blob.digest} {blob.size}"
    before = referrers(target, image.descriptor, media_types.TRACE_ARTIFACT)
    what = attach(target, image.descriptor, media_types.TRACE_ARTIFACT, blobs, notes)
    for old in before:
        if old.digest != what.digest:
            unlist(target, image.descriptor, old.digest)
    return what


def _describe_file(file: Path) -> Descriptor:
    hashed = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(BLOCK_SIZE):
            hashed.update(block)
    digest = Digest("sha256:" + hashed.hexdigest())
    return Descriptor(media_type=media_types.HOT_BUNDLE, digest=digest, size=file.stat().st_size)


def _read(source: Target, what: Descriptor, most: int) -> bytes:
    return fetch_whole(source, what, most, InvalidTrace)
