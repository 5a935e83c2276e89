"""Which chunks are fetched next, and who is told: no I/O, one lock.

A foreground read goes before read-ahead, read-ahead before the background. A chunk is in flight once,
however many readers want it. Each read has a deadline of its own; what nobody waits for any more is
given up, and asked for again by the next read.

Threading: everything may be called from any thread; the lock is never held while something blocks, and
nobody is told anything under it.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence

from envbuilder.mount.chunks.store import StoredBlob
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch import rounds
from envbuilder.mount.fetch.awake import AwakeClock
from envbuilder.mount.fetch.jobs import AHEAD, BACKGROUND, FOR_GOOD, FOREGROUND, INDEX, Job, Waiter, overdue
from envbuilder.mount.fetch.lazyblob import AnyIndex, Done, LazyBlob
from envbuilder.mount.fetch.link import Link
from envbuilder.mount.fetch.neighbours import ahead_of, together_with
from envbuilder.mount.fetch.promised import Promised
from envbuilder.mount.fetch.slots import TRY_S, Turn
from envbuilder.mount.request import Device

#: Seconds without a foreground miss until the background goes on: it never competes with a start.
_QUIET_S = 0.25
#: The same without any read: a program that computes for a moment has not started yet. Seconds after which it has.
_IDLE_S, _START_S = 1.0, 30.0
#: Seconds after a stream of what is foreseen in which a start goes on unseen: the kernel has its pages.
_UNSEEN_S = 3.0
#: Bytes of chunks kept in memory when the store has no room for them, over all blobs; of one blob at least.
_OVERFLOW, _LEAST_OVERFLOW = 64 << 20, 2 << 20


class Schedule:
    """What is wanted of the blobs of one image. ``connections``: threads that call ``next_job``."""

    def __init__(self, devices: Sequence[Device], counters: Counters, *, connections: int, wait_limit_s: float) -> None:
        self.blobs = tuple(LazyBlob(number, device, self, counters) for number, device in enumerate(devices))
        self._counters, self._connections, self._wait_limit_s = counters, connections, wait_limit_s
        self._changed = threading.Condition()
        self._queues: tuple[deque[Job], deque[Job]] = (deque(), deque())
        self._flights: dict[tuple[int, int], Job] = {}
        self._unplanned: dict[int, list[tuple[int, int, Done, float]]] = {}
        self._background: Iterator[Job] | None = None
        self._background_running = self._ahead_running = 0
        self._eager = False
        self._share = rounds.WHOLE
        self._link = Link()
        self._passed_over = False  # whether the background round must be followed by another
        self._lost: set[int] = set()  # blobs whose index cannot be had: no background round asks again
        self._promised: Promised | None = None
        self._replay: Iterator[Job] | None = None
        self._traced = False
        self.clock, self._begun = AwakeClock(), time.monotonic()  # of deadlines; of all else
        self._unseen_until = 0.0
        self._last_miss = 0.0
        self._stopped = False

    # What readers call.

    def want(self, blob: LazyBlob, offset: int, size: int, done: Done) -> None:
        """Call ``done``, from any thread, when the bytes are local, or with the error after the limit."""
        begun = time.monotonic()

        def counted(error: OSError | None) -> None:
            waited_us = int((time.monotonic() - begun) * 1e6)
            self.count(waits=1, waited_us=waited_us, failed=int(error is not None))
            done(error)

        with self._changed:
            self._last_miss = begun
            ready = self._plan(blob, offset, size, counted, self.clock.now() + self._wait_limit_s)
            stopped = self._stopped
        if ready or stopped:
            done(OSError(errno.EIO, "stopped") if stopped else None)

    def go_on(self, blob: LazyBlob, chunk: int) -> None:
        """A chunk was read for the first time: perhaps something must be fetched ahead of a run."""
        with self._changed:
            if blob.index is not None and not self._stopped:
                self._read_ahead(blob, chunk)

    def told(self, answer_s: float, rest_s: float, rest: int) -> None:
        """How a request went: see ``Link.told``."""
        with self._changed:
            self._link.told(answer_s, rest_s, rest)

    def count(self, **counts: int) -> None:
        """Add to the counters."""
        with self._changed:
            for name, count in counts.items():
                self._counters.add(name, count)

    def quiet_s(self) -> float:
        """Seconds since a read last had to wait."""
        return time.monotonic() - self._last_miss

    def _plan(self, blob: LazyBlob, offset: int, size: int, done: Done, deadline: float) -> bool:
        """Queue what is missing; True when nothing is. Under the lock."""
        if self._stopped:
            return False
        if self._promised and self._promised.park(blob, offset, size, done, time.monotonic(), deadline):
            self._counters.add("hot_waits")
            return False
        if blob.index is None or blob.stored is None:
            self._unplanned.setdefault(blob.number, []).append((offset, size, done, deadline))
            self._queue(blob, INDEX, INDEX, FOREGROUND)
            if self._promised:
                # A trace that foresees all but one read is rare: the next of them shall not wait for an index too.
                self._queue_indexes([other for other in self.blobs if other.foreseen])
            return False
        first, last = blob.chunks(offset, size)
        missing = [
            chunk
            for chunk in blob.stored.missing(first, last)
            if chunk not in blob.overflow and not blob.has_part(chunk, offset, size)
        ]
        if not missing:
            return True
        waiter = Waiter(done, deadline, len(missing))
        unasked = [chunk for chunk in missing if (blob.number, chunk) not in self._flights]
        worth = self._link.worth
        for run_first, run_last in together_with(blob, unasked, self._flights, worth=worth, traced=self._traced):
            self._queue(blob, run_first, run_last, FOREGROUND)
        for chunk in missing:
            job = self._flights[blob.number, chunk]
            job.waiters.setdefault(chunk, []).append(waiter)
            self._promote(job)
        for chunk in missing:
            self._read_ahead(blob, chunk, overtaken=chunk in unasked)
        return False

    def _read_ahead(self, blob: LazyBlob, chunk: int, *, overtaken: bool = False) -> None:
        blob.read.add(chunk)
        for first, last in ahead_of(blob, chunk, self._flights, worth=self._link.worth, overtaken=overtaken):
            self._queue(blob, first, last, AHEAD)

    def _queue(self, blob: LazyBlob, first: int, last: int, priority: int) -> None:
        if (blob.number, first) in self._flights:
            if priority == FOREGROUND:
                self._promote(self._flights[blob.number, first])
            return
        job = Job(blob, first, last, priority)
        for chunk in range(first, last + 1):
            self._flights[blob.number, chunk] = job
        self._queues[priority].append(job)
        self._changed.notify()

    def _promote(self, job: Job) -> None:
        if job.priority != FOREGROUND and not job.started:
            job.priority = FOREGROUND
            self._queues[FOREGROUND].append(job)  # its old place is passed over when its turn comes
            self._changed.notify()

    # What fetching threads call.

    def next_job(self, turn: Turn) -> Job | None:
        """Wait for the next job; None when it was stopped. What nobody waits for gets ``turn``. Ends with ``ended``."""
        with self._changed:
            while not self._stopped:
                its_turn = True
                for priority, queue in enumerate(self._queues):
                    # A read that must wait finds a connection, whatever is fetched ahead of others.
                    if priority == AHEAD and self._ahead_running >= self._link.for_ahead(self._connections):
                        break
                    while queue and (its_turn := priority == FOREGROUND or turn.try_take()):
                        job = queue.popleft()
                        if not job.started:
                            job.started = True
                            self._ahead_running += job.priority == AHEAD
                            return job
                if self._replay is not None and (its_turn := its_turn and turn.try_take()):
                    if (replayed := next(self._replay, None)) is not None:
                        self._ahead_running += 1
                        return replayed
                    self._replay = None
                quiet = self._eager or self._is_quiet()
                limit = self._connections if self._eager else self._link.for_background(self._connections)
                wanted = self._background is not None and quiet and self._background_running < limit
                if self._background is not None and wanted and (its_turn := its_turn and turn.try_take()):
                    job_or_none = next(self._background, None)
                    if job_or_none is not None:
                        self._background_running += 1
                        return job_or_none
                    # A blob whose index was not here yet was passed over: it needs another round.
                    self._background = self._rest() if self._passed_over else None
                turn.give()
                self._changed.wait(TRY_S if not its_turn else _QUIET_S if self._background is not None else None)
        return None

    def ended(self, job: Job) -> None:
        """A job is done with, whatever became of it."""
        if job.priority != FOREGROUND:
            with self._changed:
                self._background_running -= job.priority == BACKGROUND
                self._ahead_running -= job.priority == AHEAD
                self._changed.notify()

    def opened(self, blob: LazyBlob, index: AnyIndex, stored: StoredBlob) -> None:
        """The index of ``blob`` is here: plan the reads that wait for it."""
        with self._changed:
            blob.opened(index, stored)
            self._link.rest += blob.device.blob.size * stored.missing_count // len(index)
            self._flights.pop((blob.number, INDEX), None)
            waiting = self._unplanned.pop(blob.number, [])
            ready = [done for offset, size, done, deadline in waiting if self._plan(blob, offset, size, done, deadline)]
            self._changed.notify_all()
        for done in ready:
            done(None)

    def wanted_of(self, job: Job) -> list[int]:
        """The chunks of ``job`` that are not here yet."""
        with self._changed:
            return [chunk for chunk in range(job.first, job.last + 1) if (job.blob.number, chunk) in self._flights]

    def finish(self, job: Job, number: int, size: int) -> None:
        """Chunk ``number`` is here, ``size`` bytes as stored: answer the reads that it completes."""
        ready = []
        with self._changed:
            now = self._flights.pop((job.blob.number, number), job)
            self._counters.add("fetched_bytes", size)
            self._counters.add("fetched_chunks")
            waiters = job.waiters.pop(number, [])
            if now is not job:  # it was given up, and somebody else waits
                waiters = waiters + now.waiters.pop(number, [])
            if not waiters:
                self._counters.add("background_chunks" if job.priority == BACKGROUND else "ahead_chunks")
            for waiter in waiters:
                waiter.missing -= 1
                if waiter.missing == 0:
                    ready.append(waiter)
        for waiter in ready:
            waiter.done(None)

    def overflow(self, blob: LazyBlob, number: int, data: bytes) -> bool:
        """Keep a chunk that the store refused for a while; True when it is the first of its blob."""
        with self._changed:
            first = not blob.overflow
            blob.overflow[number] = data
            room = _OVERFLOW // len(self.blobs) + _LEAST_OVERFLOW
            # The one that came last is what a read waits for, however large.
            while len(blob.overflow) > 1 and sum(map(len, blob.overflow.values())) > room:
                blob.overflow.popitem(last=False)
        return first

    def fail(self, job: Job, now: float, *, unless_before: float = 0.0) -> bool:
        """Answer EIO to the reads whose limit has passed at ``now``; True when the job is given up.

        It is when nobody waits for it any more, and, if nobody ever did, from ``unless_before`` on.
        """
        with self._changed:
            failed = overdue(job, now)
            waiting = any(job.waiters.values())
            if job.first == INDEX:
                failed += self._late(job.blob.number, now)
                waiting = waiting or job.blob.number in self._unplanned
            given_up = not waiting and (now >= unless_before or job.priority == FOREGROUND)
            if given_up:
                if now < FOR_GOOD:
                    self._passed_over = True
                elif job.first == INDEX:
                    self._lost.add(job.blob.number)
                self._land(job)
        for done in failed:
            done(OSError(errno.EIO, "the source is away or sends other bytes than it promised"))
        return given_up

    def _land(self, job: Job) -> None:
        for chunk in range(job.first, job.last + 1):
            if self._flights.get((job.blob.number, chunk)) is job:
                del self._flights[job.blob.number, chunk]

    def _late(self, number: int, now: float) -> list[Done]:
        """Of the reads that wait for the index of a blob those whose limit has passed; they no longer do."""
        found = self._unplanned.pop(number, [])
        if later := [item for item in found if item[3] > now]:
            self._unplanned[number] = later
        return [done for _, _, done, deadline in found if deadline <= now]

    def expire(self, now: float) -> list[Job]:
        """Answer EIO to all reads whose limit has passed at ``now``, although what they wait for may still trickle.

        The jobs that nobody waits for any more.
        """
        given_up = []
        with self._changed:
            failed: list[Done] = []
            for job in set(self._flights.values()):
                late = self._late(job.blob.number, now) if job.first == INDEX else overdue(job, now)
                waiting = job.blob.number in self._unplanned if job.first == INDEX else any(job.waiters.values())
                failed += late
                if late and not waiting:  # it has a thread; the next read asks anew, by another
                    job.given_up = True
                    given_up.append(job)
                    self._land(job)
        for done in failed:
            done(OSError(errno.EIO, "nothing came within the limit"))
        return given_up

    # Starting, everything at once, stopping.

    def want_indexes(self, blobs: Sequence[LazyBlob]) -> None:
        """Get these chunk indexes now, so that first reads find them."""
        with self._changed:
            self._queue_indexes(blobs)

    def _queue_indexes(self, blobs: Sequence[LazyBlob]) -> None:
        for blob in blobs:
            if blob.index is None:
                self._queue(blob, INDEX, INDEX, AHEAD)

    def promise(self, promised: Promised) -> None:
        """A stream will bring these pages: reads of them wait for it. Tell ``arrived`` and ``stalled`` how it goes."""
        with self._changed:
            self._promised, self._traced = promised, True

    def arrived(self, frames: int) -> None:
        """The first ``frames`` frames of the stream have gone by, or more of one is in the store."""
        with self._changed:
            assert self._promised is not None
            ready = self._promised.arrived(frames, time.monotonic())
        for parked in ready:
            parked.done(None)

    def stalled(self, *, ended: bool) -> None:
        """Nothing comes of the stream at the moment, or any more: reads that wait for it are fetched."""
        with self._changed:
            assert self._promised is not None
            self._unseen_until = time.monotonic() + _UNSEEN_S if ended else 0.0
            parked = self._promised.release(ended=ended)
            ready = [each for each in parked if self._plan(each.blob, each.offset, each.size, each.done, each.deadline)]
            self._changed.notify_all()
        for each in ready:
            each.done(None)

    def want_groups(self, groups: Sequence[tuple[int, int]]) -> None:
        """Fetch these groups of pages, (blob, group), in about this order, before anything that nobody waits for."""
        with self._changed:
            self._traced = True
            self._replay = rounds.foreseen(groups, self.blobs, self._flights)
            self._changed.notify_all()

    def _is_quiet(self) -> bool:
        """Whether the background may go on: nobody waits, or only for the distance; what is foreseen is here."""
        if not self._traced and self._link.is_idle:
            return True
        if self.quiet_s() <= _QUIET_S:
            return False
        if self._replay is not None or (self._promised and not self._promised.ended):
            return False
        now = time.monotonic()
        if now < self._unseen_until:
            return False
        return now - max(blob.read_at for blob in self.blobs) > _IDLE_S or now - self._begun > _START_S

    def want_rest(self, *, eager: bool, share: rounds.Share = rounds.WHOLE) -> None:
        """Get what is missing in the background, or a share of it; ``eager``: with every connection, whoever waits."""
        with self._changed:
            self._share = share
            self._eager = eager
            self._background = self._rest()
            self._changed.notify_all()

    def _rest(self) -> Iterator[Job]:
        """A round over what is missing; blobs whose index is not here are passed over, and their index is asked for."""
        self._passed_over = False
        for blob in rounds.in_order_of_use(self.blobs):
            if blob.stored is not None and blob.index is not None:
                yield from rounds.rest_of(blob, self._flights, self._share)
            elif blob.number not in self._lost:
                self._passed_over = True
                self._queue(blob, INDEX, INDEX, AHEAD)

    def stop(self) -> None:
        """No more jobs; every read that waits fails now."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            jobs = set(self._flights.values())
            waiters = {waiter for job in jobs for found in job.waiters.values() for waiter in found}
            failed = [waiter.done for waiter in waiters if waiter.missing > 0]
            failed += [done for found in self._unplanned.values() for _, _, done, _ in found]
            if self._promised:
                failed += [parked.done for parked in self._promised.release(ended=True)]
            for waiter in waiters:
                waiter.missing = -1
            self._flights.clear()
            self._unplanned.clear()
        for done in failed:
            done(OSError(errno.EIO, "stopped"))
