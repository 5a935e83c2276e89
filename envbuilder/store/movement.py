"""Movement: the blobs of one copy on their way, several at a time, as the hosts at both ends bear it."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import Any, BinaryIO, TypeAlias, cast

from envbuilder.digest import Descriptor, Digest, DigestMismatch, read_into, verifying
from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.store.mirrored import DistrustingTarget
from envbuilder.store.target import FileStream, PacedTarget, Span, TaggingTarget, Target

#: Called with a blob and the bytes of it moved since the last call, from any thread; negative when they go again.
Progress: TypeAlias = Callable[[Descriptor, int], None]
#: Called with a blob that the destination turned out to have, from any thread.
Found: TypeAlias = Callable[[Descriptor], None]


class UnreadableSource(HostError):
    """A stream of the source ended with an error of the operating system."""


class CopyCancelled(EnvbuilderError):
    """Another blob of the same copy failed first: that error is the one to read."""


def in_turn(blobs: Sequence[Descriptor]) -> list[Descriptor]:
    """``blobs`` in the order to move them: the largest, the smallest, the second largest, and so on.

    Large ones begin early, so that none is left alone at the end; small ones, which wait more than they work, fill the
    time that large ones wait for a disk, and their successes let more move at a time.
    """
    ordered = sorted(blobs, key=_from_large)
    half = (len(ordered) + 1) // 2
    pairs = zip_longest(ordered[:half], reversed(ordered[half:]))
    return [blob for pair in pairs for blob in pair if blob]


def _from_large(blob: Descriptor) -> int:
    return -blob.size


class Movement:
    """Blobs and documents on their way from one target to another: the state that the threads of it share."""

    def __init__(self, source: Target, target: Target, progress: Progress | None, found: Found | None = None) -> None:
        self._source, self._target, self._progress, self._found = source, target, progress, found
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.moved = 0
        self.opened: set[Digest] = set()

    def all_of(self, blobs: Sequence[Descriptor], jobs: int, *, ask: bool = False) -> None:
        """Move ``blobs``, ``jobs`` at a time; ask: unless the destination has them."""
        pool = ThreadPoolExecutor(max(1, min(jobs, len(blobs) or 1)), "copy")
        futures: list[Future[None]] = []
        try:
            # One by one no order is faster: archives keep the one that they always had, and so their bytes.
            order = in_turn(blobs) if jobs > 1 else sorted(blobs, key=_from_large)
            futures = [pool.submit(self.missing if ask else self.blob, blob) for blob in order]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failures = [error for future in futures if future in done and (error := future.exception())]
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        if failures:
            raise next((error for error in failures if not isinstance(error, CopyCancelled)), failures[0])

    def missing(self, what: Descriptor) -> None:
        """``blob``, unless the destination has it."""
        self._go_on(what)
        with on_side("destination", self._target, what):
            is_there = self._target.has(what)
        if not is_there:
            self.blob(what)
        elif self._found is not None:
            self._found(what)

    def document(self, what: Descriptor, data: bytes) -> None:
        with on_side("destination", self._target, what):
            self._target.push(what, lambda: io.BytesIO(data))
        self._count(what, len(data))

    def tag(self, root: Descriptor, data: bytes, tag: str, *, is_new: bool) -> None:
        """Let ``tag`` name the manifest ``root``, which counts as moved if it ``is_new`` there."""
        with on_side("destination", self._target, root):
            if not isinstance(self._target, TaggingTarget):
                self._target.tag(root, tag)
                return
            self._target.push_tagged(root, data, tag)
        if is_new:
            self._count(root, root.size)

    def stop(self) -> None:
        """Let what is on its way end with CopyCancelled, and nothing begin."""
        self._stop.set()

    def blob(self, what: Descriptor) -> None:
        """Move a blob once both ends have a place for it.

        Raises:
            CopyCancelled: after ``stop``, or because another blob failed. What the targets raise.
        """
        with on_side("destination", self._target, what), self._slots() as ending:
            if self._stop.is_set():
                raise CopyCancelled(f"copy: {what.digest}: not begun, because another blob failed")
            try:
                self._target.push(what, lambda: self._open(what, ending))
            except DigestMismatch:
                if not isinstance(self._source, DistrustingTarget) or not self._source.distrust(what):
                    raise
                self._target.push(what, lambda: self._open(what, ending))

    @contextmanager
    def _slots(self) -> Iterator[Callable[[], None]]:
        """A place at each host that has a pace: once where both ends are one, in one order for all copies.

        To be told when the last byte has passed.
        """
        paces = {id(one.pace): one.pace for one in (self._source, self._target) if isinstance(one, PacedTarget)}
        with ExitStack() as held:
            ends = [held.enter_context(pace.slot()) for _, pace in sorted(paces.items())]

            def ending() -> None:
                for end in ends:
                    end()

            yield ending
            for pace in paces.values():
                pace.faster()

    def _open(self, what: Descriptor, ending: Callable[[], None]) -> BinaryIO:
        with on_side("source", self._source, what):
            inner = verifying(self._source.fetch(what), what, source=self._source.name)
        with self._lock:
            self.opened.add(what.digest)
        return cast("BinaryIO", _Watched(inner, self, what, ending))

    def _count(self, what: Descriptor, size: int) -> None:
        with self._lock:
            self.moved += size
        if self._progress is not None:
            self._progress(what, size)

    def _go_on(self, what: Descriptor) -> None:
        if self._stop.is_set():
            raise CopyCancelled(f"copy: {what.digest}: stopped, because another blob failed")

    def read(self, inner: BinaryIO, what: Descriptor, size: int) -> bytes:
        with self._reading(what):
            data = inner.read(size)
        self._count(what, len(data))
        return data

    def readinto(self, inner: BinaryIO, what: Descriptor, room: memoryview) -> int:
        with self._reading(what):
            got = read_into(inner, room)
        self._count(what, got)
        return got

    @contextmanager
    def _reading(self, what: Descriptor) -> Iterator[None]:
        self._go_on(what)
        with on_side("source", self._source, what):
            try:
                yield
            except OSError as error:
                raise UnreadableSource(str(error), hint="Look into the state of the source's disk.") from error

    def send(self, spans: Iterator[Span], what: Descriptor) -> Iterator[Span]:
        """``spans``, counted as moved once the next is asked for."""
        with on_side("source", self._source, what):
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

    def __init__(self, inner: BinaryIO, movement: Movement, what: Descriptor, ending: Callable[[], None]) -> None:
        super().__init__()
        self._inner, self._movement, self._what, self._ending = inner, movement, what, ending
        self._passed = 0

    @property
    def promise(self) -> tuple[Digest, int]:
        """The inner stream verifies: the target need not hash again."""
        return self._what.digest, self._what.size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._movement.read(self._inner, self._what, size)
        self._pass(len(data))
        return data

    def _pass(self, size: int) -> None:
        self._passed += size
        if self._passed == self._what.size:
            self._ending()

    def readinto(self, buffer: Any, /) -> int:
        got = self._movement.readinto(self._inner, self._what, memoryview(buffer))
        self._pass(got)
        return got

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
            self._pass(span.size)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
            if self._passed < self._what.size:
                self._movement.correct(self._what, -self._passed)
        super().close()


@contextmanager
def on_side(side: str, target: Target, what: Descriptor) -> Iterator[None]:
    """Put the side and the blob in front of an error's message, once; type, fields and hint stay."""
    try:
        yield
    except EnvbuilderError as error:
        if not hasattr(error, "copy_side"):
            error.copy_side = side  # type: ignore[attr-defined]
            error.args = (f"{side} {target.name}: {what.digest}: {error}", *error.args[1:])
        raise
