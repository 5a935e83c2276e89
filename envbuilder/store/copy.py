"""Copy a whole image from one target to another: children first, the tag last.

``copy_plan`` decides and reads only; ``copy`` acts. Killed anywhere, the target has no
manifest whose children it lacks. The same digests stand at both ends.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias, cast

from envbuilder.digest import Descriptor, Digest, DigestMismatch, verifying
from envbuilder.errors import EnvbuilderError, HostError, IntegrityError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, parse_document
from envbuilder.store.mirrored import DistrustingTarget
from envbuilder.store.pace import MOST
from envbuilder.store.target import (
    FileStream,
    ForgetfulTarget,
    MissingChildren,
    PacedTarget,
    SerialTarget,
    Span,
    TaggingTarget,
    Target,
)
from envbuilder.store.whole import fetch_whole

#: Blobs moved at a time at most; each registry's own pace, which begins at 4, decides how many of them run.
DEFAULT_JOBS = MOST
#: Questions (``has``) asked at a time: they are small, and a push of 60 layers starts with 60 of them.
_QUESTIONS = 16
#: Caps on a graph that someone else made (registry.md 8.2): levels of indexes, manifests, blobs.
MAX_DEPTH = 4
MAX_MANIFESTS = 1_000
MAX_BLOBS = 20_000

#: Called with a blob and the bytes of it moved since the last call, from any thread; negative when they go again.
Progress: TypeAlias = Callable[[Descriptor, int], None]


class GraphTooLarge(IntegrityError):
    """An image index is nested too deeply or names too much to be an image."""


class UnreadableSource(HostError):
    """A stream of the source ended with an error of the operating system."""


class CopyCancelled(EnvbuilderError):
    """Another blob of the same copy failed first: that error is the one to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """What a copy would do; each digest stands once.

    manifests: documents that the target lacks, children first, as (descriptor, bytes).
    blobs: configs and layers that the target lacks. present: all that it has already.
    document: the root's bytes. tagged: the tag of the copy names the root there already.
    """

    root: Descriptor
    manifests: tuple[tuple[Descriptor, bytes], ...]
    blobs: tuple[Descriptor, ...]
    present: tuple[Descriptor, ...]
    document: bytes
    tagged: bool = False

    @property
    def size(self) -> int:
        """Bytes to move at most."""
        return sum(blob.size for blob in self.blobs) + sum(manifest.size for manifest, _ in self.manifests)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a copy did; manifests count as blobs. A blob that the target took from elsewhere was skipped."""

    descriptor: Descriptor
    copied: int
    copied_bytes: int
    skipped: int
    skipped_bytes: int


def copy_plan(source: Target, what: Descriptor, target: Target, *, tag: str = "") -> CopyPlan:
    """What must move so that ``target`` has ``what`` and all that it names, and ``tag`` names it there.

    The root is asked for first. Where it is, its manifests are: no target takes one without its children. Blobs
    are asked for all the same, since registries lose them under a manifest (registry.md 9: Quay, zot).

    Raises:
        NotFound: the source lacks a manifest. GraphTooLarge: over a cap.
        DigestMismatch: a manifest is not what named it, or one digest is given two sizes.
    """
    manifests, blobs = _graph(source, what)

    def ask(blob: Descriptor) -> bool:
        with _side("destination", target, blob):
            return target.has(blob)

    with _side("destination", target, what):
        tagged = bool(tag) and isinstance(target, TaggingTarget) and target.is_tagged(what, tag)
        root_there = tagged or target.has(what)
    unsure = [] if root_there else [manifest for manifest, _ in manifests if manifest.digest != what.digest]
    with ThreadPoolExecutor(_QUESTIONS, "copy-plan") as pool:
        wanted = [*blobs, *unsure]
        answers = dict(zip((blob.digest for blob in wanted), pool.map(ask, wanted), strict=True))
    there = [manifest for manifest, _ in manifests if answers.get(manifest.digest, root_there)]
    known = {manifest.digest for manifest in there}
    return CopyPlan(
        root=what,
        manifests=tuple(pair for pair in manifests if pair[0].digest not in known),
        blobs=tuple(blob for blob in blobs if not answers[blob.digest]),
        present=(*(blob for blob in blobs if answers[blob.digest]), *there),
        document=next(data for manifest, data in manifests if manifest.digest == what.digest),
        tagged=tagged,
    )


def copy(
    source: Target,
    what: Descriptor,
    target: Target,
    *,
    tag: str = "",
    jobs: int = DEFAULT_JOBS,
    progress: Progress | None = None,
    plan: CopyPlan | None = None,
    finish: bool = True,
) -> CopyReport:
    """Let ``target`` hold ``what`` and all that it names, and ``tag`` name it there.

    An archive is finished, unless more is to come (``finish`` is False).

    ``plan`` is one that ``copy_plan`` made of the same arguments, so that a caller may show it first.
    The first error stops the other blobs; its message says which side and which blob.

    Raises:
        whatever the targets raise, and what ``copy_plan`` raises.
    """
    plan = plan or copy_plan(source, what, target, tag=tag)
    if plan.root.digest != what.digest:
        raise ValueError(f"copy: the plan is of {plan.root.digest}, not of {what.digest}")
    try:
        report = _act(source, target, plan, tag, jobs, progress)
    except MissingChildren:
        # What the target remembers is no longer so: ask, and send what is gone.
        if not isinstance(target, ForgetfulTarget) or not target.forget():
            raise
        report = _act(source, target, copy_plan(source, what, target, tag=tag), tag, jobs, progress)
    if finish and isinstance(target, SerialTarget):
        with _side("destination", target, what):
            target.finish(what)
    return report


def _act(source: Target, target: Target, plan: CopyPlan, tag: str, jobs: int, progress: Progress | None) -> CopyReport:
    movement = Movement(source, target, progress)
    # An archive's bytes should follow from the image alone, so its blobs go one by one.
    movement.all_of(plan.blobs, 1 if isinstance(target, SerialTarget) else jobs)
    for manifest, data in plan.manifests:
        if manifest.digest != plan.root.digest or not tag or not isinstance(target, TaggingTarget):
            movement.document(manifest, data)
    if tag and not plan.tagged:
        movement.tag(plan, tag)
    skipped = [*plan.present, *(blob for blob in plan.blobs if blob.digest not in movement.opened)]
    return CopyReport(
        descriptor=plan.root,
        copied=len(plan.blobs) + len(plan.manifests) + len(plan.present) - len(skipped),
        copied_bytes=movement.moved,
        skipped=len(skipped),
        skipped_bytes=sum(blob.size for blob in skipped),
    )


def _graph(source: Target, root: Descriptor) -> tuple[list[tuple[Descriptor, bytes]], list[Descriptor]]:
    """All manifests, children first, with their bytes; all other blobs, in the order they are named."""
    manifests: dict[Digest, tuple[Descriptor, bytes]] = {}
    blobs: dict[Digest, Descriptor] = {}
    sizes: dict[Digest, int] = {}

    def note(what: Descriptor) -> None:
        if sizes.setdefault(what.digest, what.size) != what.size:
            raise DigestMismatch(f"copy: {root.digest}", what.digest, sizes[what.digest], None, what.size)

    def visit(what: Descriptor, depth: int) -> None:
        note(what)
        if what.digest in manifests:
            return
        if depth > MAX_DEPTH or len(manifests) >= MAX_MANIFESTS:
            raise GraphTooLarge(
                f"copy: {root.digest}: want at most {MAX_DEPTH} levels and {MAX_MANIFESTS} manifests, got more"
            )
        data = _document(source, what)
        document = parse_document(data, source=f"{source.name}: {what.digest}")
        if isinstance(document, Index):
            for child in document.manifests:
                visit(child, depth + 1)
        else:
            for blob in (document.config, *document.layers):
                note(blob)
                blobs.setdefault(blob.digest, blob)
        if len(blobs) > MAX_BLOBS:
            raise GraphTooLarge(f"copy: {root.digest}: want at most {MAX_BLOBS} blobs, got more")
        manifests[what.digest] = (what, data)

    visit(root, 1)
    return list(manifests.values()), [blob for blob in blobs.values() if blob.digest not in manifests]


def _document(source: Target, what: Descriptor) -> bytes:
    if what.media_type not in media_types.MANIFESTS | media_types.INDEXES:
        raise GraphTooLarge(f"copy: {what.digest}: want an image manifest or index, got {what.media_type[:100]!r}")
    with _side("source", source, what):
        return fetch_whole(source, what, MAX_MANIFEST_SIZE, GraphTooLarge)


class Movement:
    """Blobs and documents on their way from one target to another: the state that the threads of it share."""

    def __init__(self, source: Target, target: Target, progress: Progress | None) -> None:
        self._source, self._target, self._progress = source, target, progress
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.moved = 0
        self.opened: set[Digest] = set()

    def all_of(self, blobs: Sequence[Descriptor], jobs: int) -> None:
        # Large blobs first: the last one to finish should not be one that started late.
        largest_first = sorted(blobs, key=lambda blob: -blob.size)
        pool = ThreadPoolExecutor(max(1, min(jobs, len(blobs) or 1)), "copy")
        futures: list[Future[None]] = []
        try:
            futures = [pool.submit(self.blob, blob) for blob in largest_first]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failures = [error for future in futures if future in done and (error := future.exception())]
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise next((error for error in failures if not isinstance(error, CopyCancelled)), failures[0])

    def document(self, what: Descriptor, data: bytes) -> None:
        with _side("destination", self._target, what):
            self._target.push(what, lambda: io.BytesIO(data))
        self._count(what, len(data))

    def tag(self, plan: CopyPlan, tag: str) -> None:
        root = plan.root
        with _side("destination", self._target, root):
            if not isinstance(self._target, TaggingTarget):
                self._target.tag(root, tag)
                return
            self._target.push_tagged(root, plan.document, tag)
        if root.digest in {manifest.digest for manifest, _ in plan.manifests}:
            self._count(root, root.size)

    def stop(self) -> None:
        """Let what is on its way end with CopyCancelled, and nothing begin."""
        self._stop.set()

    def is_there(self, what: Descriptor) -> bool:
        """Whether the destination has it."""
        with _side("destination", self._target, what):
            return self._target.has(what)

    def blob(self, what: Descriptor) -> None:
        """Move a blob once both ends have a place for it.

        Raises:
            CopyCancelled: after ``stop``, or because another blob failed. What the targets raise.
        """
        with _side("destination", self._target, what), self._slots():
            if self._stop.is_set():
                raise CopyCancelled(f"copy: {what.digest}: not begun, because another blob failed")
            try:
                self._target.push(what, lambda: self._open(what))
            except DigestMismatch:
                if not isinstance(self._source, DistrustingTarget) or not self._source.distrust(what):
                    raise
                self._target.push(what, lambda: self._open(what))

    @contextmanager
    def _slots(self) -> Iterator[None]:
        """A place at each host that has a pace: once where both ends are one, in one order for all copies."""
        paces = {id(one.pace): one.pace for one in (self._source, self._target) if isinstance(one, PacedTarget)}
        with ExitStack() as held:
            for _, pace in sorted(paces.items()):
                held.enter_context(pace.slot())
            yield
            for pace in paces.values():
                pace.faster()

    def _open(self, what: Descriptor) -> BinaryIO:
        with _side("source", self._source, what):
            inner = verifying(self._source.fetch(what), what, source=self._source.name)
        with self._lock:
            self.opened.add(what.digest)
        return cast("BinaryIO", _Watched(inner, self, what))

    def _count(self, what: Descriptor, size: int) -> None:
        with self._lock:
            self.moved += size
        if self._progress is not None:
            self._progress(what, size)

    def _go_on(self, what: Descriptor) -> None:
        if self._stop.is_set():
            raise CopyCancelled(f"copy: {what.digest}: stopped, because another blob failed")

    def read(self, inner: BinaryIO, what: Descriptor, size: int) -> bytes:
        self._go_on(what)
        with _side("source", self._source, what):
            try:
                data = inner.read(size)
            except OSError as error:
                raise UnreadableSource(str(error), hint="Look into the state of the source's disk.") from error
        self._count(what, len(data))
        return data

    def send(self, spans: Iterator[Span], what: Descriptor) -> Iterator[Span]:
        """``spans``, counted as moved once the next is asked for."""
        with _side("source", self._source, what):
            for span in spans:
                self._go_on(what)
                yield span
                self._count(what, span.size)

    def correct(self, what: Descriptor, size: int) -> None:
        """So many bytes more were moved than was counted, or less."""
        if size:
            self._count(what, size)


class _Watched(io.RawIOBase):
    """A verified stream of the source that counts, can be stopped, and says which side failed."""

    def __init__(self, inner: BinaryIO, movement: Movement, what: Descriptor) -> None:
        super().__init__()
        self._inner, self._movement, self._what = inner, movement, what
        self._passed = 0

    @property
    def promise(self) -> tuple[Digest, int]:
        """The inner stream verifies: the target need not hash again."""
        return self._what.digest, self._what.size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._movement.read(self._inner, self._what, size)
        self._passed += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def spans(self, offset: int, size: int) -> Iterator[Span] | None:
        """See ``FileStream``."""
        spans = self._inner.spans(offset, size) if isinstance(self._inner, FileStream) else None
        return None if spans is None else self._watched(spans, offset)

    def _watched(self, spans: Iterator[Span], offset: int) -> Iterator[Span]:
        # What stands before went another time, or is to go again.
        self._movement.correct(self._what, offset - self._passed)
        self._passed = offset
        for span in self._movement.send(spans, self._what):
            yield span
            self._passed += span.size

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
            if self._passed < self._what.size:
                self._movement.correct(self._what, -self._passed)
        super().close()


@contextmanager
def _side(side: str, target: Target, what: Descriptor) -> Iterator[None]:
    """Put the side and the blob in front of an error's message, once; type, fields and hint stay."""
    try:
        yield
    except EnvbuilderError as error:
        if not hasattr(error, "copy_side"):
            error.copy_side = side  # type: ignore[attr-defined]
            error.args = (f"{side} {target.name}: {what.digest}: {error}", *error.args[1:])
        raise
