"""Lazy blobs: which chunks a read needs, fetched once, verified, stored, and the reader told.

A foreground read goes before read-ahead, read-ahead before the background. A chunk is in flight once,
however many readers want it. While the source is away reads wait, each up to ``wait_limit_s``, then
fail with EIO and are tried again by the next read: a mapped library must not die of a registry's
restart (lazy_start.md 7). An altered chunk is fetched again a few times and is never stored.

Threading: ``want`` and ``read_now`` from any thread; ``connections`` threads fetch. One lock guards
the tables and is never held while something blocks.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError, IntegrityError, UnavailableError
from envbuilder.layer.chunks import ChunkIndex, index_range, open_index
from envbuilder.layer.frames import BadChunk, read_chunk
from envbuilder.mount.chunkstore import ChunkStore, StoredBlob, StoreRefused
from envbuilder.mount.counters import Counters
from envbuilder.mount.request import Device
from envbuilder.store.target import RangeTarget

_log = logging.getLogger(__name__)

#: Compressed bytes of one background request (lazy_start.md 4: coalesced 4-8 MiB ranges).
_BACKGROUND_RANGE = 4 << 20
#: Chunks that one miss fetches, aligned: the first in a region, and the next ones in a region that is in use.
#: ``import torch`` from the AI image, replayed 2026-11-30: one chunk 2,648 requests and 230 MB; these 1,103 and
#: 297 MB; always 4 chunks 902 and 320 MB. A request costs a round trip and, in Debian's registry, 4 ms of CPU.
_FIRST_GROUP, _GROUP, _REGION = 2, 4, 16
#: Chunks that read-ahead grows to: 4 MiB of uncompressed data ahead of a sequential reader.
_MAX_AHEAD = 16
#: Sequential readers of one blob that are remembered.
_STREAMS = 32
#: Seconds without a foreground miss until the background goes on: it never competes with a start.
_QUIET_S = 0.25
#: Background requests in flight: two keep a 1 Gbit/s line full, and leave it quickly.
_BACKGROUND_CONNECTIONS = 2
#: Times that an altered chunk, or one that the source says it lacks, is asked for before a reader gets EIO.
_TRIES = 4
#: First and longest pause before the source is asked again, seconds; doubled each time, with jitter.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Chunks kept in memory when the store has no room for them: 64 MiB of our chunks, over all blobs.
_OVERFLOW_CHUNKS = 256

#: Seconds that requests in flight get at the end.
_STOP_S = 1.0

_FOREGROUND, _AHEAD, _BACKGROUND = 0, 1, 2
Done = Callable[[OSError | None], None]


class SourceAway(UnavailableError):
    """The registry did not answer for longer than the declared limit."""

    hint = "Start the command again when the registry is back; what was fetched is kept."


@dataclass(slots=True)
class _Waiter:
    """A read that waits for ``missing`` chunks; ``deadline`` is on the monotonic clock."""

    done: Done
    deadline: float
    missing: int = 0
    error: OSError | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """One ranged read: chunks ``first`` to ``last`` of a blob, both included; -1 is its chunk index."""

    blob: LazyBlob
    first: int
    last: int
    priority: int
    started: bool = False
    waiters: dict[int, list[_Waiter]] = field(default_factory=dict)


class LazyBlob:
    """One layer blob whose chunks come when they are read: a ``ServedFile``."""

    def __init__(self, number: int, device: Device, fetcher: Fetcher) -> None:
        self.number, self.device, self.size = number, device, device.size
        self._fetcher = fetcher
        self._counters = fetcher.counters
        self.index: ChunkIndex | None = None
        self.stored: StoredBlob | None = None
        self._chunk_size = 0
        # Sequential readers: the chunk that goes on -> where to fetch ahead from, and how many chunks.
        self.streams: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.regions: set[int] = set()  # of _REGION chunks, in which something was missed
        self.overflow: OrderedDict[int, bytes] = OrderedDict()

    def opened(self, index: ChunkIndex, stored: StoredBlob) -> None:
        """The index is here: reads can be planned."""
        step = index.offsets[1]
        regular = all(offset == number * step for number, offset in enumerate(index.offsets[:-1]))
        self._chunk_size = step if regular else 0
        self.index = index
        self.stored = stored

    def chunks(self, offset: int, size: int) -> tuple[int, int]:
        """First and last chunk of a range of at least one byte; the index is here."""
        if step := self._chunk_size:
            return offset // step, (offset + size - 1) // step
        assert self.index is not None
        return bisect_right(self.index.offsets, offset) - 1, bisect_right(self.index.offsets, offset + size - 1) - 1

    def read_now(self, offset: int, into: memoryview) -> bool:
        """Fill ``into`` if all of it is local; see ``fuse.ServedFile``."""
        stored = self.stored
        if stored is None:
            return False
        first, last = self.chunks(offset, len(into))
        if not stored.has(first, last):
            return bool(self.overflow) and self._read_overflow(stored, offset, into, first, last)
        stored.read(offset, into)
        self._counters.add("hits")
        if first in self.streams or last in self.streams:
            self._fetcher.go_on(self, last)
        return True

    def _read_overflow(self, stored: StoredBlob, offset: int, into: memoryview, first: int, last: int) -> bool:
        assert self.index is not None
        end = offset + len(into)
        for number in range(first, last + 1):
            start, stop = max(offset, self.index.offsets[number]), min(end, self.index.offsets[number + 1])
            part = into[start - offset : stop - offset]
            if stored.has(number, number):
                stored.read(start, part)
            elif (data := self.overflow.get(number)) is not None:
                part[:] = data[start - self.index.offsets[number] :][: len(part)]
            else:
                return False
        return True

    def when_ready(self, offset: int, size: int, done: Done) -> None:
        """See ``fuse.ServedFile``."""
        self._fetcher.want(self, offset, size, done)


class Fetcher:
    """Fetches chunks of the ``devices`` of one image from ``source`` into ``store``."""

    def __init__(
        self,
        image: str,
        devices: Sequence[Device],
        store: ChunkStore,
        counters: Counters,
        *,
        connections: int = 8,
        wait_limit_s: float = 300.0,
    ) -> None:
        self._image, self._store, self.counters = image, store, counters
        self._connections, self._wait_limit_s = connections, wait_limit_s
        self.blobs = tuple(LazyBlob(number, device, self) for number, device in enumerate(devices))
        self._changed = threading.Condition()
        self._queues: tuple[deque[_Job], deque[_Job]] = (deque(), deque())
        self._flights: dict[tuple[int, int], _Job] = {}
        self._unplanned: dict[int, list[tuple[int, int, Done, float]]] = {}
        self._background: Iterator[_Job] | None = None
        self._background_running = 0
        self._eager = False
        self._passed_over = False  # whether the background round must be followed by another
        self._last_miss = 0.0
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._source: RangeTarget | None = None

    # What readers call.

    def want(self, blob: LazyBlob, offset: int, size: int, done: Done) -> None:
        """Call ``done``, from any thread, when the bytes are local, or with the error after the limit."""
        begun = time.monotonic()

        def counted(error: OSError | None) -> None:
            with self._changed:
                self.counters.add("waits")
                self.counters.add("waited_us", int((time.monotonic() - begun) * 1e6))
                if error is not None:
                    self.counters.add("failed")
            done(error)

        with self._changed:
            self._last_miss = begun
            ready = self._plan(blob, offset, size, counted, begun + self._wait_limit_s)
        if ready:
            done(None)

    def _plan(self, blob: LazyBlob, offset: int, size: int, done: Done, deadline: float) -> bool:
        """Queue what is missing; True when nothing is. Under the lock."""
        if blob.stored is None:
            self._unplanned.setdefault(blob.number, []).append((offset, size, done, deadline))
            self._queue(blob, -1, -1, _FOREGROUND)
            return False
        first, last = blob.chunks(offset, size)
        missing = [chunk for chunk in blob.stored.missing(first, last) if chunk not in blob.overflow]
        if not missing:
            return True
        waiter = _Waiter(done, deadline, len(missing))
        unasked = [chunk for chunk in missing if (blob.number, chunk) not in self._flights]
        for run_first, run_last in _runs(self._with_neighbours(blob, unasked)):
            self._queue(blob, run_first, run_last, _FOREGROUND)
        for chunk in missing:
            job = self._flights[blob.number, chunk]
            job.waiters.setdefault(chunk, []).append(waiter)
            self._promote(job)
        self._read_ahead(blob, missing[0], missing[-1])
        return False

    def _with_neighbours(self, blob: LazyBlob, missing: Sequence[int]) -> list[int]:
        """What to fetch for ``missing``: its aligned group, larger where something was read nearby before."""
        assert blob.index is not None
        assert blob.stored is not None
        wanted: set[int] = set()
        for chunk in missing:
            region = chunk // _REGION
            group = _GROUP if region in blob.regions else _FIRST_GROUP
            blob.regions.add(region)
            start = chunk // group * group
            wanted.update(blob.stored.missing(start, min(start + group, len(blob.index)) - 1))
        return sorted(chunk for chunk in wanted if (blob.number, chunk) not in self._flights)

    def go_on(self, blob: LazyBlob, chunk: int) -> None:
        """A sequential reader came to where its read-ahead began: fetch further ahead."""
        with self._changed:
            self._read_ahead(blob, chunk, chunk)

    def _read_ahead(self, blob: LazyBlob, first: int, last: int) -> None:
        """Fetch on for a sequential reader, twice as far each time it enters what was fetched ahead for it.

        A chunk that continues no stream begins one and fetches nothing more: an import storm stays as
        small as it is. One request a region, so that requests grow with the stream.
        """
        assert blob.index is not None
        assert blob.stored is not None
        begin, window = 0, 0
        for chunk in range(first, last + 1):
            if (found := blob.streams.pop(chunk, None)) is not None:
                begin, window = found
        if not window:
            blob.streams[last + 1] = (last + 2, 1)
        elif begin < len(blob.index):
            end = min(begin + window, len(blob.index))
            wanted = [c for c in blob.stored.missing(begin, end - 1) if (blob.number, c) not in self._flights]
            for run_first, run_last in _runs(wanted):
                self._queue(blob, run_first, run_last, _AHEAD)
            blob.streams[begin] = (end, min(window * 2, _MAX_AHEAD))
        while len(blob.streams) > _STREAMS:
            blob.streams.popitem(last=False)

    def _queue(self, blob: LazyBlob, first: int, last: int, priority: int) -> None:
        if (blob.number, first) in self._flights:
            self._promote(self._flights[blob.number, first])
            return
        job = _Job(blob, first, last, priority)
        for chunk in range(first, last + 1):
            self._flights[blob.number, chunk] = job
        self._queues[priority].append(job)
        self._changed.notify()

    def _promote(self, job: _Job) -> None:
        if job.priority != _FOREGROUND and not job.started:
            job.priority = _FOREGROUND
            self._queues[_FOREGROUND].append(job)  # its old place is passed over when its turn comes
            self._changed.notify()

    # Starting, stopping, everything at once.

    def start(self, source: RangeTarget, *, background: bool = False) -> None:
        """Begin to fetch; chunk indexes are fetched at once, so that first reads find them."""
        self._source = source
        if background:
            self._background = self._rest()
        with self._changed:
            for blob in self.blobs:
                if blob.stored is None and not self._store.is_complete(blob.device.blob.digest, blob.size):
                    self._queue(blob, -1, -1, _AHEAD)
        for number in range(self._connections):
            thread = threading.Thread(target=self._work, name=f"fetch-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def fetch_all(self, progress: Callable[[int, int], None]) -> None:
        """Get every chunk of every blob, in parallel; ``progress`` gets chunks done and chunks in all, now and then.

        Raises:
            SourceAway: nothing came for ``wait_limit_s``. StoreRefused: the store has no room.
        """
        with self._changed:
            self._eager = True
            self._background = self._rest()
            self._changed.notify_all()
        moved, before = time.monotonic(), -1
        while True:
            opened = [blob.stored for blob in self.blobs if blob.stored is not None]
            total = sum(len(blob.index) for blob in self.blobs if blob.index is not None)
            left = sum(stored.missing_count for stored in opened)
            progress(total - left, total)
            if len(opened) == len(self.blobs) and left == 0:
                break
            if any(blob.overflow for blob in self.blobs):
                raise StoreRefused(f"{self._image}: the chunk store {self._store.directory} has no room for the image")
            if total - left != before:
                moved, before = time.monotonic(), total - left
            if time.monotonic() - moved > self._wait_limit_s:
                raise SourceAway(f"{self._image}: {self._name}: nothing came for {self._wait_limit_s:.0f} s")
            with self._changed:
                self._changed.wait(0.05)

    def quiet_s(self) -> float:
        """Seconds since a read last had to wait."""
        return time.monotonic() - self._last_miss

    def stop(self) -> None:
        """End the threads and fail what waits."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()
            waiting = [
                waiter for job in set(self._flights.values()) for found in job.waiters.values() for waiter in found
            ]
            unplanned = [done for found in self._unplanned.values() for _, _, done, _ in found]
            self._flights.clear()
            self._unplanned.clear()
        for done in [*(waiter.done for waiter in waiting), *unplanned]:
            done(OSError(errno.EIO, "stopped"))
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

    # The fetching threads.

    @property
    def _name(self) -> str:
        return self._source.name if self._source else "no source"

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._run(job)
            except Exception:  # noqa: BLE001, PERF203 - the loop of a server: its readers get EIO, the log the reason
                _log.exception("%s: fetching failed", self._image)
                self._fail(job, time.monotonic() + float("inf"))
            finally:
                if job.priority == _BACKGROUND:
                    with self._changed:
                        self._background_running -= 1
                        self._changed.notify()

    def _next(self) -> _Job | None:
        with self._changed:
            while not self._stopped.is_set():
                for queue in self._queues:
                    while queue:
                        job = queue.popleft()
                        if not job.started:
                            job.started = True
                            return job
                quiet = self._eager or time.monotonic() - self._last_miss > _QUIET_S
                limit = self._connections if self._eager else _BACKGROUND_CONNECTIONS
                if self._background is not None and quiet and self._background_running < limit:
                    job_or_none = next(self._background, None)
                    if job_or_none is not None:
                        self._background_running += 1
                        return job_or_none
                    # A blob whose index was not here yet was passed over: it needs another round.
                    self._background = self._rest() if self._passed_over else None
                self._changed.wait(_QUIET_S if self._background is not None else None)
        return None

    def _rest(self) -> Iterator[_Job]:
        """Jobs for all that is missing, blob by blob. Advanced under the lock."""
        self._passed_over = False
        for blob in self.blobs:
            if blob.stored is None or blob.index is None:
                self._passed_over = True
                self._queue(blob, -1, -1, _AHEAD)
                continue
            chunk, end = 0, len(blob.index)
            while chunk < end:
                first = next(blob.stored.missing(chunk, end - 1), end)
                chunk = first + 1
                if first == end or (blob.number, first) in self._flights:
                    continue
                while (
                    chunk < end
                    and (blob.number, chunk) not in self._flights
                    and not blob.stored.has(chunk, chunk)
                    and blob.index.blob_offsets[chunk + 1] - blob.index.blob_offsets[first] <= _BACKGROUND_RANGE
                ):
                    chunk += 1
                job = _Job(blob, first, chunk - 1, _BACKGROUND, started=True)
                for number in range(first, chunk):
                    self._flights[blob.number, number] = job
                yield job

    def _run(self, job: _Job) -> None:
        """Fetch until it worked, or until nobody waits any more."""
        tries, pause = 0, _PAUSE_S
        begun = time.monotonic()
        while not self._stopped.is_set():
            try:
                if job.first < 0:
                    self._open(job.blob)
                else:
                    self._fetch(job)
                return
            except BadChunk as error:
                tries += 1
                with self._changed:
                    self.counters.add("refetched_chunks")
                _log.warning("%s: %s: %s", self._image, self._name, error)
            except (UnavailableError, OSError) as error:
                with self._changed:
                    self.counters.add("outages")
                _log.warning("%s: %s: %s", self._image, self._name, error)
                limit = begun + self._wait_limit_s
                if self._fail(job, time.monotonic(), unless_before=limit):
                    return
            except EnvbuilderError as error:  # it says no: asking a few times more is for replicas that lag behind
                tries += 1
                _log.warning("%s: %s: %s", self._image, self._name, error)
                if isinstance(error, IntegrityError):
                    tries = max(tries, _TRIES - 1)
            if tries >= _TRIES:
                _log.error("%s: %s: gave up on layer %s", self._image, self._name, job.blob.device.blob.digest)
                self._fail(job, float("inf"))
                return
            self._stopped.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _open(self, blob: LazyBlob) -> None:
        """Get the chunk index, from the store or the source, and plan the reads that wait for it."""
        descriptor = blob.device.blob
        source = f"layer {descriptor.digest}"
        index = self._read_index(descriptor, source)
        if index.size != blob.size or len(index) == 0:
            raise BadChunk(f"{source}: chunk index: want {blob.size} bytes of tar, got {index.size}")
        stored = self._store.open(descriptor.digest, index.offsets[:-1], index.size)
        with self._changed:
            blob.opened(index, stored)
            self._flights.pop((blob.number, -1), None)
            ready = []
            for offset, size, done, deadline in self._unplanned.pop(blob.number, []):
                if self._plan(blob, offset, size, done, deadline):
                    ready.append(done)
            self._changed.notify_all()
        for done in ready:
            done(None)

    def _read_index(self, descriptor: Descriptor, source: str) -> ChunkIndex:
        frame = self._store.read_index(descriptor.digest)
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
        with self._changed:
            self.counters.add("fetched_bytes", len(frame))
        self._store.write_index(descriptor.digest, frame)
        return index

    def _fetch(self, job: _Job) -> None:
        """One ranged read; each chunk is verified, stored and told to its readers on its own."""
        blob, index, stored = job.blob, job.blob.index, job.blob.stored
        assert self._source is not None
        assert index is not None
        assert stored is not None
        numbers = [number for number in range(job.first, job.last + 1) if (blob.number, number) in self._flights]
        if not numbers:
            return
        start, end = index.blob_offsets[numbers[0]], index.blob_offsets[numbers[-1] + 1]
        data = memoryview(self._source.fetch_range(blob.device.blob, start, end - start))
        with self._changed:
            self.counters.add("requests")
        # What somebody waits for comes first.
        for number in sorted(numbers, key=lambda number: number not in job.waiters):
            chunk = index[number]
            part = data[chunk.blob_offset - start :][: chunk.blob_size]
            plain = read_chunk(chunk, bytes(part), source=f"layer {blob.device.blob.digest}")
            try:
                stored.write(number, plain)
            except OSError as error:
                self._overflow(blob, number, plain, error)
            self._finish(job, number, chunk.blob_size)

    def _overflow(self, blob: LazyBlob, number: int, data: bytes, error: OSError) -> None:
        with self._changed:
            if not blob.overflow:
                _log.warning("%s: chunk store full, chunks are kept in memory: %s", self._image, error)
            blob.overflow[number] = data
            while len(blob.overflow) > _OVERFLOW_CHUNKS // len(self.blobs) + 8:
                blob.overflow.popitem(last=False)

    def _finish(self, job: _Job, number: int, size: int) -> None:
        """Chunk ``number`` is here: count it, and answer the reads that it completes."""
        ready = []
        with self._changed:
            self._flights.pop((job.blob.number, number), None)
            self.counters.add("fetched_bytes", size)
            self.counters.add("fetched_chunks")
            waiters = job.waiters.pop(number, ())
            if not waiters:
                self.counters.add("background_chunks" if job.priority == _BACKGROUND else "ahead_chunks")
            for waiter in waiters:
                waiter.missing -= 1
                if waiter.missing == 0:
                    ready.append(waiter)
        for waiter in ready:
            waiter.done(waiter.error)

    def _fail(self, job: _Job, now: float, *, unless_before: float = 0.0) -> bool:
        """Answer EIO to the reads whose limit has passed; True when the job has nobody left and is given up."""
        failed: list[Done] = []
        error = OSError(errno.EIO, "the source is away or sends other bytes than it promised")
        with self._changed:
            for chunk, waiters in list(job.waiters.items()):
                late = [waiter for waiter in waiters if waiter.deadline <= now]
                job.waiters[chunk] = [waiter for waiter in waiters if waiter.deadline > now]
                for waiter in late:
                    if waiter.error is None:
                        waiter.error = error
                        failed.append(waiter.done)
                    waiter.missing = -1  # other chunks of it that come later must not answer again
            if job.first < 0:
                found = self._unplanned.pop(job.blob.number, [])
                failed += [done for _, _, done, deadline in found if deadline <= now]
                if later := [item for item in found if item[3] > now]:
                    self._unplanned[job.blob.number] = later
            waiting = any(job.waiters.values()) or bool(self._unplanned.get(job.blob.number) and job.first < 0)
            given_up = not waiting and (now >= unless_before or job.priority == _FOREGROUND)
            if given_up:
                self._passed_over = True
                for chunk in range(job.first, job.last + 1):
                    self._flights.pop((job.blob.number, chunk), None)
        for done in failed:
            done(error)
        return given_up


def _runs(chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring chunks joined: (first, last) of each run."""
    first = last = -2
    for chunk in chunks:
        if chunk != last + 1:
            if first >= 0:
                yield first, last
            first = chunk
        last = chunk
    if first >= 0:
        yield first, last
