"""The fetcher: threads that get chunks, verify, store and hand them over, as the schedule says.

While the source is away reads wait, each up to ``wait_limit_s``, then fail with EIO and are tried again
by the next read: a mapped library must not die of a registry's restart (lazy_start.md 7). An altered
chunk is fetched again a few times and is never stored.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import cast

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError, IntegrityError, UnavailableError
from envbuilder.layer.chunks import ChunkIndex, index_range, open_index
from envbuilder.layer.frames import BadChunk, read_chunk
from envbuilder.mount.chunks.store import ChunkStore, StoreRefused
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch.jobs import FOR_GOOD, INDEX, Job
from envbuilder.mount.fetch.lazyblob import LazyBlob
from envbuilder.mount.fetch.rounds import WHOLE, Share
from envbuilder.mount.fetch.schedule import Schedule
from envbuilder.mount.fetch.slots import FreeTurn, Turn
from envbuilder.mount.foreign.spans import SpanMap, read_spans
from envbuilder.mount.request import Device
from envbuilder.store.mirrored import DistrustingTarget
from envbuilder.store.target import PartsTarget, RangeTarget

_log = logging.getLogger(__name__)

#: Times that an altered chunk, or one that the source says it lacks, is asked for before a reader gets EIO.
_TRIES = 4
#: First and longest pause before the source is asked again, seconds; doubled each time, with jitter.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Seconds that requests in flight get at the end.
_STOP_S = 1.0
#: Seconds between two looks at how far a full pull is, and at whether reads have waited for too long.
_LOOK_S, _EXPIRE_S = 0.05, 0.5


class SourceAway(UnavailableError):
    """The registry did not answer for longer than the declared limit."""

    hint = "Start the command again when the registry is back; what was fetched is kept."


class Fetcher:
    """Fetches chunks of the ``devices`` of one image from a source into ``store``. turns: what this node may do."""

    def __init__(
        self,
        image: str,
        devices: Sequence[Device],
        store: ChunkStore,
        counters: Counters,
        *,
        connections: int = 8,
        wait_limit_s: float = 300.0,
        turns: Callable[[], Turn] = FreeTurn,
    ) -> None:
        self._image, self._store, self.counters = image, store, counters
        self._connections, self._wait_limit_s, self._turns = connections, wait_limit_s, turns
        self._schedule = Schedule(devices, counters, connections=connections, wait_limit_s=wait_limit_s)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._source: RangeTarget | None = None
        self._in_parts = False
        self._gave_up: EnvbuilderError | None = None

    @property
    def blobs(self) -> tuple[LazyBlob, ...]:
        """One served file a device, in order."""
        return self._schedule.blobs

    @property
    def schedule(self) -> Schedule:
        """What is wanted of the blobs."""
        return self._schedule

    def start(self, source: RangeTarget, *, background: bool = False, foreseen: bool = False) -> None:
        """Begin to fetch; chunk indexes are fetched at once, so that first reads find them.

        foreseen: a stream brings what is read at the start, so that indexes come when they are needed.
        """
        self._source = source
        self._in_parts = isinstance(source, PartsTarget)
        if background:
            self._schedule.want_rest(eager=False)
        complete = self._store.is_complete
        if not foreseen:
            self._schedule.want_indexes([b for b in self.blobs if not complete(b.device.stored_as, b.size)])
        for number in range(self._connections):
            thread = threading.Thread(target=self._work, name=f"fetch-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        threading.Thread(target=self._expire, name="deadlines", daemon=True).start()

    def fetch_all(
        self,
        progress: Callable[[int, int], None],
        *,
        share: Share = WHOLE,
        helped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Get every chunk of every blob, in parallel; ``progress`` gets chunks done and chunks in all, now and then.

        share: what of it is ours; others, as long as ``helped``, get the rest into the same store.

        Raises:
            SourceAway: nothing came for ``wait_limit_s``. StoreRefused: the store has no room.
            IntegrityError, NotFound, ...: what the source said, or sent, again and again.
        """
        self._schedule.want_rest(eager=True, share=share)
        clock = self._schedule.clock
        moved, before = clock.now(), -1
        while True:
            opened = [blob.stored for blob in self.blobs if blob.stored is not None]
            total = sum(len(blob.index) for blob in self.blobs if blob.index is not None)
            left = sum(stored.missing_count for stored in opened)
            progress(total - left, total)
            if len(opened) == len(self.blobs) and left == 0:
                return
            if self._gave_up is not None:
                raise self._gave_up
            if any(blob.overflow for blob in self.blobs):
                raise StoreRefused(f"{self._image}: the chunk store {self._store.directory} has no room for the image")
            if share != WHOLE and not helped():
                share = WHOLE
                self._schedule.want_rest(eager=True)
            if total - left != before:
                moved, before = clock.now(), total - left
            if clock.now() - moved > self._wait_limit_s:
                raise SourceAway(f"{self._image}: {self._name}: nothing came for {self._wait_limit_s:.0f} s")
            self._stopped.wait(_LOOK_S)

    def quiet_s(self) -> float:
        """Seconds since a read last had to wait."""
        return self._schedule.quiet_s()

    def stop(self) -> None:
        """End the threads and fail what waits."""
        self._stopped.set()
        self._schedule.stop()
        end = time.monotonic() + _STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            for blob in self.blobs:
                if blob.stored is not None:
                    blob.stored.close()

    def flush(self) -> None:
        """Make durable what is here; a store that refuses costs only the next start's time."""
        for blob in self.blobs:
            if blob.stored is not None:
                try:
                    blob.stored.flush()
                except (OSError, EnvbuilderError) as error:
                    _log.warning("%s: chunk store not flushed: %s", self._image, error)

    @property
    def _name(self) -> str:
        return self._source.name if self._source else "no source"

    def _work(self) -> None:
        turn = self._turns()
        while (job := self._schedule.next_job(turn)) is not None:
            try:
                turn.take()
                self._run(job)
            except Exception:  # noqa: BLE001, PERF203 - the loop of a server: its readers get EIO, the log the reason
                _log.exception("%s: fetching failed", self._image)
                self._schedule.fail(job, FOR_GOOD)
            finally:
                turn.give()
                self._schedule.ended(job)

    def _expire(self) -> None:
        while not self._stopped.wait(_EXPIRE_S):
            for job in self._schedule.expire(self._schedule.clock.now()):
                limit_s = self._wait_limit_s
                _log.error(
                    "%s: %s: nothing whole within %.0f s: gave up on %s", self._image, self._name, limit_s, job.what
                )

    def _run(self, job: Job) -> None:
        """Fetch until it worked, or until nobody waits any more."""
        tries, pause = 0, _PAUSE_S
        clock = self._schedule.clock
        begun = clock.now()
        while not self._stopped.is_set():
            try:
                if job.first == INDEX:
                    self._open(job.blob)
                else:
                    self._fetch(job)
                return
            except (UnavailableError, OSError) as error:
                self._schedule.count(outages=1)
                _log.warning("%s: %s: %s", self._image, self._name, error)
                if self._schedule.fail(job, clock.now(), unless_before=begun + self._wait_limit_s):
                    _log.error("%s: %s: gave up on %s: %s", self._image, self._name, job.what, error)
                    return
            except EnvbuilderError as error:
                # It says no, or sends other bytes: asking a few times more is for replicas that differ.
                tries += 1
                _log.warning("%s: %s: %s", self._image, self._name, error)
                if isinstance(error, IntegrityError) and self._ask_elsewhere(job):
                    tries = 0
                if isinstance(error, BadChunk):
                    self._schedule.count(refetched_chunks=1)
                elif isinstance(error, IntegrityError) and tries:
                    tries = max(tries, _TRIES - 1)
                if tries >= _TRIES:
                    _log.error("%s: %s: gave up on %s: %s", self._image, self._name, job.what, error)
                    self._gave_up = error
                    self._schedule.fail(job, FOR_GOOD)
                    return
            self._stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _ask_elsewhere(self, job: Job) -> bool:
        """Whether what a mirror sent, which was wrong, is asked of another source now."""
        source = self._source
        return isinstance(source, DistrustingTarget) and source.distrust(job.blob.device.blob)

    def _open(self, blob: LazyBlob) -> None:
        """Get the chunk index, from the store or the source, and plan the reads that wait for it."""
        descriptor = blob.device.blob
        source = f"layer {descriptor.digest}"
        index = read_spans(blob.device) or self._read_index(blob.device, source)
        if index.size != blob.size or len(index) == 0:
            raise BadChunk(f"{source}: chunk index: want {blob.size} bytes of tar, got {index.size}")
        if (stored := blob.here()) is None:
            name = blob.device.stored_as
            stored = self._store.open(name, index.offsets[:-1], index.size, layer=descriptor.digest)
        elif not blob.fits(index):
            raise BadChunk(f"{source}: chunk index: its chunks are not all of the size that its length tells")
        self._schedule.opened(blob, index, stored)

    def _read_index(self, device: Device, source: str) -> ChunkIndex:
        descriptor = device.blob
        frame = self._store.read_index(device.stored_as)
        if frame is not None:
            try:
                return open_index(descriptor, frame, source=source)
            except IntegrityError as error:
                _log.warning("%s: stored index dropped: %s", self._image, error)
        where = index_range(descriptor, source=source)
        if where is None or self._source is None:
            raise BadChunk(f"{source}: it has no chunk index")
        frame = self._source.fetch_range(descriptor, where[0], where[1] - where[0])
        index = open_index(descriptor, frame, source=source)
        self._schedule.count(fetched_bytes=len(frame))
        self._store.write_index(device.stored_as, frame)
        return index

    def _fetch(self, job: Job) -> None:
        """One ranged read; each chunk is verified, stored and told to its readers as it comes."""
        blob, index, stored = job.blob, job.blob.index, job.blob.stored
        assert self._source is not None
        assert index is not None
        assert stored is not None
        numbers = self._schedule.wanted_of(job)
        if not numbers:
            return
        self._schedule.count(requests=1)
        span = range(numbers[0], numbers[-1] + 1)
        begun, answered, size = time.monotonic(), 0.0, 0
        for number, part in zip(span, self._parts(blob.device.blob, index, span), strict=True):
            answered = answered or time.monotonic()
            size += len(part)
            if number not in numbers:
                continue
            chunk = index[number]
            layer = f"layer {blob.device.blob.digest}"
            if isinstance(index, SpanMap):
                plain = index.read(number, part, source=layer)
            else:
                plain = read_chunk(chunk, part, source=layer)
            try:
                stored.write(number, plain)
            except OSError as error:
                if self._schedule.overflow(blob, number, plain):
                    _log.warning("%s: chunk store full, chunks are kept in memory: %s", self._image, error)
            self._schedule.finish(job, number, chunk.blob_size)
            if job.given_up:
                return
        first = index.blob_offsets[span.start + 1] - index.blob_offsets[span.start]
        self._schedule.told(answered - begun, time.monotonic() - answered, size - first)

    def _parts(self, blob: Descriptor, index: ChunkIndex | SpanMap, span: range) -> Iterator[bytes]:
        """The chunks of ``span`` as they lie in the blob, each as soon as the source has it."""
        source = self._source
        assert source is not None
        offsets = index.blob_offsets[span.start : span.stop + 1]
        sizes = [end - start for start, end in pairwise(offsets)]
        if self._in_parts:
            yield from cast("PartsTarget", source).fetch_parts(blob, offsets[0], sizes)
            return
        data = source.fetch_range(blob, offsets[0], offsets[-1] - offsets[0])
        for start, size in zip(offsets, sizes, strict=False):
            yield data[start - offsets[0] :][:size]
