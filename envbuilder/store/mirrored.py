"""An image's source with mirrors: they are asked first, and whatever they cannot give comes from the origin.

Only content is read from mirrors, by digest: whoever reads it checks it, and says so (``distrust``) when it was other
bytes. Tags are asked of the origin, unless told otherwise: a mirror may be behind. A mirror that fails is left alone
for a while; only when the origin fails too it is asked once more. Before them all come documents that this node kept.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from typing import Any, BinaryIO, Literal, Protocol, TypeVar, cast, get_args, runtime_checkable

from envbuilder.digest import Descriptor, Digest, verifying
from envbuilder.errors import EnvbuilderError, IntegrityError, UnavailableError
from envbuilder.store.documents import Documents
from envbuilder.store.pace import Pace
from envbuilder.store.referrers import Listing, ReferringTarget
from envbuilder.store.target import (
    HostedTarget,
    NotFound,
    Opener,
    PacedTarget,
    PartsTarget,
    RangeTarget,
    SiblingTarget,
    Target,
)

_log = logging.getLogger(__name__)
_Given = TypeVar("_Given")

#: Who says what a tag names: the origin; a mirror when the origin is away; a mirror at once.
TagSource = Literal["origin", "fallback", "mirror"]
TAG_SOURCES: tuple[TagSource, ...] = get_args(TagSource)

#: Seconds that a mirror is left alone: it was away; it refused us; it sent other bytes. One that lacks a blob is not
#: asked for that blob again for so long.
_AWAY_S, _REFUSED_S, _WRONG_S, _LACKING_S = 30.0, 300.0, 600.0, 60.0
#: Blobs that a mirror is known to lack.
_KNOWN_LACKING = 4096
#: A mirror that gave fewer bytes a second, when waited for so many seconds together, is as good as away.
_SLOW_RATE, _SLOW_S = 32 << 10, 5.0
#: Bytes of content that is read whole and verified before it is given, so that another source can be asked.
_WHOLE = 16 << 20
#: Bytes of one part of a stream that is taken up at another source.
_PART = 1 << 20


class MirrorTooSlow(UnavailableError):
    """A mirror gives some bytes now and then."""


@runtime_checkable
class DistrustingTarget(Protocol):
    """A target that can ask elsewhere."""

    def distrust(self, what: Descriptor) -> bool:
        """What this thread was last given of ``what`` is not that: whether asking again asks somebody else."""


@runtime_checkable
class GivingTarget(Protocol):
    """A target that tells who gave what."""

    def count_into(self, add: Callable[[int, bool], None]) -> None:
        """Tell ``add`` bytes, and whether a mirror gave them: what was given so far, and from now on all that is.

        From the threads that read, some at once.
        """


class _Source:
    """A mirror, or the origin, and what is known of it."""

    def __init__(self, target: RangeTarget, *, is_origin: bool) -> None:
        self.target, self.is_origin = target, is_origin
        self.aside_until = 0.0
        self.is_wrong = False
        self.lacking: dict[Digest, float] = {}

    def is_fit(self, digest: Digest, now: float) -> bool:
        return self.is_origin or (now >= self.aside_until and now >= self.lacking.get(digest, 0.0))

    def set_aside(self, seconds: float, why: object) -> None:
        now = time.monotonic()
        if now >= self.aside_until:
            _log.warning("mirror %s: not asked for %.0f s: %s", self.target.name, seconds, why)
        self.aside_until = max(self.aside_until, now + seconds)

    def failed(self, digest: Digest, error: BaseException) -> None:
        """Keep in mind what it did when it was asked for ``digest``."""
        if self.is_origin:
            return
        if isinstance(error, NotFound):
            if len(self.lacking) >= _KNOWN_LACKING:
                self.lacking.clear()
            self.lacking[digest] = time.monotonic() + _LACKING_S
            _log.debug("mirror %s: %s", self.target.name, error)
        elif isinstance(error, (UnavailableError, OSError)):
            self.set_aside(_AWAY_S, error)
        elif isinstance(error, IntegrityError):
            self.is_wrong = True
            self.set_aside(_WRONG_S, error)
        else:
            self.set_aside(_REFUSED_S, error)


class MirroredTarget:
    """``origin`` with ``mirrors``, the first before the others: a RangeTarget with parts and distrust. Thread-safe.

    documents: where manifests and configs are kept; with them, what is pinned is found though nobody is there.
    """

    def __init__(
        self,
        origin: RangeTarget,
        mirrors: Sequence[RangeTarget],
        *,
        tags: TagSource = "origin",
        documents: Documents | None = None,
    ) -> None:
        self._made_of = (origin, tuple(mirrors), tags, documents)
        self._documents = documents
        self._origin, self._tags = _Source(origin, is_origin=True), tags
        self._mirrors = tuple(_Source(mirror, is_origin=False) for mirror in mirrors)
        self._here = threading.local()
        self._uncounted = {True: 0, False: 0}
        self._counting = threading.Lock()
        self._add: Callable[[int, bool], None] = self._keep

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self._made_of

    @property
    def name(self) -> str:
        return self._origin.target.name

    def sibling(self, repository: str) -> Target:
        """As of ``SiblingTarget``: of the origin, with what this node kept."""
        origin, _, tags, documents = self._made_of
        other = origin.sibling(repository) if isinstance(origin, SiblingTarget) else origin
        return MirroredTarget(other, (), tags=tags, documents=documents) if isinstance(other, RangeTarget) else other

    def count_into(self, add: Callable[[int, bool], None]) -> None:
        """See ``GivingTarget``."""
        with self._counting:
            self._add, before, self._uncounted = add, self._uncounted, {True: 0, False: 0}
        for by_mirror, size in before.items():
            add(size, by_mirror)

    def _keep(self, size: int, by_mirror: bool) -> None:  # noqa: FBT001 - see GivingTarget
        with self._counting:
            self._uncounted[by_mirror] += size

    def _counted(self, data: bytes) -> bytes:
        """``data``, which this thread was just given."""
        self._add(len(data), not self._here.answered.is_origin)
        return data

    @property
    def host(self) -> str:
        """Whoever is asked first, or "" where that is no server."""
        first = next(iter([*self._mirrors, self._origin])).target
        return first.host if isinstance(first, HostedTarget) else ""

    @property
    def pace(self) -> Pace:
        """The origin's, or one of its own for an origin without."""
        origin = self._origin.target
        return origin.pace if isinstance(origin, PacedTarget) else Pace()

    def has(self, what: Descriptor) -> bool:
        return self._origin.target.has(what)

    def push(self, what: Descriptor, content: Opener) -> None:
        self._origin.target.push(what, content)

    def tag(self, what: Descriptor, tag: str) -> None:
        self._origin.target.tag(what, tag)

    def lookup(self, tag: str) -> Descriptor:
        if tag.startswith("sha256:"):
            digest = Digest.parse(tag)
            kept = self._documents and self._documents.lookup(digest)
            return kept or self._of(self._in_order(digest), digest, lambda target: target.lookup(tag))
        if self._tags == "origin":
            return self._origin.target.lookup(tag)
        others = self._mirrors
        order = [self._origin, *others] if self._tags == "fallback" else [*others, self._origin]
        # Where a mirror's word counts and nobody else is there, its "no such tag" does too.
        what = self._of(order, Digest.of(tag.encode()), lambda target: target.lookup(tag), believe_absence=True)
        if self._tags == "fallback" and not self._here.answered.is_origin:
            mirror = self._here.answered.target.name
            _log.warning("%s is away: its tag %s is what the mirror %s says", self.name, tag, mirror)
        return what

    def listed_referrers(self, subject: Descriptor, artifact_type: str) -> Listing | None:
        """See ``ReferringTarget``: of the origin; where mirrors may say what a tag names, of one when that is away."""
        order = [self._origin] if self._tags == "origin" else [self._origin, *self._mirrors]
        return self._of(order, subject.digest, lambda target: _listed(target, subject, artifact_type))

    def fetch(self, what: Descriptor) -> BinaryIO:
        if what.size <= _WHOLE:
            return io.BytesIO(self._whole(what))
        sizes = [min(_PART, what.size - at) for at in range(0, what.size, _PART)]
        stream = cast("BinaryIO", io.BufferedReader(_Stream(self.fetch_parts(what, 0, sizes)), _PART))
        return verifying(stream, what, source=f"{self.name}: {what.digest}")

    def _whole(self, what: Descriptor) -> bytes:
        kept = self._documents and self._documents.find(what.digest)
        if kept and len(kept) == what.size:
            return kept
        data = self._counted(self._of(self._in_order(what.digest), what.digest, lambda target: _whole(target, what)))
        if self._documents:
            self._documents.keep(what, data)
        return data

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        order = self._in_order(what.digest)
        return self._counted(self._of(order, what.digest, lambda target: target.fetch_range(what, offset, size)))

    def fetch_parts(self, what: Descriptor, offset: int, sizes: Sequence[int]) -> Iterator[bytes]:
        offsets = list(accumulate(sizes, initial=offset))
        done = 0
        while done < len(sizes):
            before, failure = done, None
            for source in self._in_order(what.digest):
                parts = _parts(source.target, what, offsets[done], sizes[done:])
                try:
                    with contextlib.closing(_watched(parts, source)) as watched:
                        for part in watched:
                            done += 1
                            self._here.answered = source
                            yield self._counted(part)
                    return
                except (EnvbuilderError, OSError) as error:
                    source.failed(what.digest, error)
                    if done == len(sizes):
                        return
                    failure = error if failure is None or source.is_origin else failure
            # A connection that broke is taken up again, as long as each round brings something.
            if failure and (done == before or not isinstance(failure, (UnavailableError, OSError))):
                raise failure

    def distrust(self, what: Descriptor) -> bool:
        """See ``DistrustingTarget``."""
        source: _Source | None = getattr(self._here, "answered", None)
        if source is None or source.is_origin:
            return False
        self._here.answered = None
        source.is_wrong = True
        source.set_aside(_WRONG_S, f"it sent other bytes than those of {what.digest}")
        return True

    def _of(
        self,
        sources: Sequence[_Source],
        digest: Digest,
        ask: Callable[[RangeTarget], _Given],
        *,
        believe_absence: bool = False,
    ) -> _Given:
        """The answer of the first source that has one; the origin's error when none has.

        believe_absence: rather a mirror's NotFound than that the origin is away.
        """
        failure: BaseException | None = None
        absent: NotFound | None = None
        for source in sources:
            try:
                given = ask(source.target)
            except (EnvbuilderError, OSError) as error:  # noqa: PERF203 - the next source is asked
                source.failed(digest, error)
                failure = error if failure is None or source.is_origin else failure
                absent = error if isinstance(error, NotFound) else absent
            else:
                self._here.answered = source
                return given
        assert failure is not None
        raise absent if believe_absence and absent and isinstance(failure, UnavailableError) else failure

    def _in_order(self, digest: Digest) -> list[_Source]:
        """Mirrors that are fit, the origin, and last the others, which are better than nothing."""
        now = time.monotonic()
        fit = [mirror for mirror in self._mirrors if mirror.is_fit(digest, now)]
        return [*fit, self._origin, *(each for each in self._mirrors if each not in fit and not each.is_wrong)]


def _remade(
    origin: RangeTarget, mirrors: Sequence[RangeTarget], tags: TagSource, documents: Documents | None
) -> MirroredTarget:
    return MirroredTarget(origin, mirrors, tags=tags, documents=documents)


def _listed(target: RangeTarget, subject: Descriptor, artifact_type: str) -> Listing | None:
    return target.listed_referrers(subject, artifact_type) if isinstance(target, ReferringTarget) else None


def _whole(target: RangeTarget, what: Descriptor) -> bytes:
    with target.fetch(what) as stream:
        return verifying(stream, what, source=f"{target.name}: {what.digest}").read()


def _parts(target: RangeTarget, what: Descriptor, offset: int, sizes: Sequence[int]) -> Iterator[bytes]:
    if isinstance(target, PartsTarget):
        yield from cast("PartsTarget", target).fetch_parts(what, offset, sizes)
        return
    for start, size in zip(accumulate(sizes, initial=offset), sizes, strict=False):
        yield target.fetch_range(what, start, size)


def _watched(parts: Iterator[bytes], source: _Source) -> Generator[bytes, None, None]:
    """``parts``; a mirror that gives too little is told from one whose reader takes its time.

    Raises:
        MirrorTooSlow: between two parts.
    """
    waited_s, given, begun = 0.0, 0, time.monotonic()
    for part in parts:
        waited_s, given = waited_s + time.monotonic() - begun, given + len(part)
        yield part
        if not source.is_origin and waited_s > max(_SLOW_S, given / _SLOW_RATE):
            raise MirrorTooSlow(f"{source.target.name}: {given} bytes in {waited_s:.0f} s")
        begun = time.monotonic()


class _Stream(io.RawIOBase):
    """Parts as a file."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._left = parts, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            self._left = next(self._parts, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count
