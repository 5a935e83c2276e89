"""The streamer: the process that brings a hot bundle into the chunk store while the command starts.

A process of its own, because unpacking and hashing would compete with the worker's threads for one interpreter.
It tells how far it is through a pipe: eight bytes each time, the frames that have gone by, and the same again when
more is in the store. Its end, however it comes, ends the pipe; what it did not bring is then fetched as if there were
no trace.
"""

from __future__ import annotations

import logging
import os
import random
import select
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar, cast

from envbuilder.digest import Descriptor
from envbuilder.errors import UnavailableError
from envbuilder.layer.chunks import CorruptChunkIndex, even_chunk_size
from envbuilder.layer.pages import GROUP_SIZE
from envbuilder.mount.chunks.store import ChunkStore, StoredBlob
from envbuilder.mount.counters import Counters
from envbuilder.mount.request import Device, Serving
from envbuilder.mount.startup.delivery import Delivery
from envbuilder.mount.startup.hot import BadHotPage, FramePlan, FramePlans, HotDevice, Prover, page_root, proof_order
from envbuilder.mount.startup.trace import Trace
from envbuilder.store.mirrored import DistrustingTarget
from envbuilder.store.target import PartsTarget, RangeTarget

_log = logging.getLogger(__name__)
_Proved = TypeVar("_Proved")

#: What is written into the pipe.
COUNT = struct.Struct("<Q")
#: First and longest pause before the source is asked again, seconds.
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Seconds that a pipe may give nothing before the source is asked: who writes into it may have been stopped.
_SILENT_S = 3.0


def is_usable(serving: Serving) -> bool:
    """Whether there is a bundle that the image can prove, and which saves something.

    All layers that it touches must name a root over their pages, and have chunks of one size. What touches most of
    the image is pulled whole, in the order of the trace.
    """
    found = serving.trace
    if found is None or found.hot is None:
        return False
    devices = [serving.devices[number] for number in touched(found.trace)]
    return not found.trace.covers_most_of([device.size for device in serving.devices]) and all(
        page_root(device.blob) is not None and chunk_size(device) for device in devices
    )


def chunk_size(device: Device) -> int:
    """Bytes of each chunk of a device whose index is not here; 0 where they cannot be known without it."""
    try:
        return even_chunk_size(device.blob, device.size, unit=GROUP_SIZE, source=f"layer {device.blob.digest}")
    except CorruptChunkIndex:
        return 0


def touched(trace: Trace) -> list[int]:
    """The numbers of the image's devices that ``trace`` touches."""
    return sorted({pages.device for pages in trace.own})


def open_pages(store: ChunkStore, device: Device) -> StoredBlob:
    """A device, open for single pages; its chunk index is not needed for that.

    Raises:
        StoreRefused, OSError: the store cannot be written.
    """
    starts = range(0, device.size, chunk_size(device))
    opened = store.open(device.stored_as, starts, device.size, layer=device.blob.digest)
    opened.with_pages()
    return opened


class _Blobs(dict[int, StoredBlob]):
    """The devices of an image in the store, each opened when it is first asked for: that takes a millisecond."""

    def __init__(self, store: ChunkStore, devices: Sequence[Device]) -> None:
        super().__init__()
        self._store, self._devices = store, devices

    def __missing__(self, number: int) -> StoredBlob:
        self[number] = open_pages(self._store, self._devices[number])
        return self[number]


def stream(
    serving: Serving,
    source: RangeTarget,
    counters: Counters,
    progress: int,
    *,
    files: Path,
    device: int = -1,
    awaited: int = -1,
    early: int = -1,
) -> None:
    """Bring the bundle of ``serving.trace``, frame by frame, and say so on ``progress``, a pipe.

    device: the /dev/fuse that serves the devices, in ``files``, whose kernel gets each page; -1: the store gets them.
    awaited: a pipe that says what reads wait for. early: where the bundle comes from its beginning on, perhaps not to
    its end; -1: nowhere.

    Raises:
        BadHotPage: it is not of this image. UnavailableError: the source was away for too long.
        OSError: the disk is full.
    """
    assert serving.trace is not None
    plans = FramePlans(serving.trace.trace)
    blobs = _Blobs(ChunkStore(serving.store), serving.devices)
    first = _first_missing(plans, blobs)

    def gone_by(frames: int) -> None:
        with suppress(BrokenPipeError):  # no worker now: the next one hears of it
            os.write(progress, COUNT.pack(frames))

    delivery = Delivery(plans, blobs, counters, gone_by, device=device, awaited=awaited, files=files)
    delivery.begin(first)
    if first < len(plans):
        _bring(serving, source, counters, plans, delivery, first, early)
    elif early >= 0:
        os.close(early)
    delivery.finish()
    os.close(progress)
    delivery.keep()


def _bring(
    serving: Serving,
    source: RangeTarget,
    counters: Counters,
    plans: Sequence[FramePlan],
    delivery: Delivery,
    first: int,
    early: int,
) -> None:
    assert serving.trace is not None
    assert serving.trace.hot is not None
    trace, hot = serving.trace.trace, serving.trace.hot
    sizes = [trace.proofs, *(frame.size for frame in trace.frames)]
    incoming = _Incoming(source, hot, sizes, serving.wait_limit_s, early)
    devices = {number: _device(serving, number) for number in proof_order(trace)}
    proofs, prover = incoming.proved(lambda data: Prover(devices, data))
    counters.add("hot_bytes", len(proofs))
    counters.add("fetched_bytes", len(proofs))
    # Leaves stand in the frame that needs them first: a bundle is read from its beginning, whatever is here of it.
    for number, (plan, frame) in enumerate(zip(plans, trace.frames, strict=True)):
        stored, opened = incoming.proved(partial(prover.open, frame=frame, plan=plan))
        counters.add("hot_bytes", len(stored))
        counters.add("fetched_bytes", len(stored))
        if number >= first:
            delivery.deliver(number, opened)


def _device(serving: Serving, number: int) -> HotDevice:
    if number >= len(serving.devices):
        assert serving.trace is not None
        return HotDevice(serving.trace.trace.sizes[number], None)
    device = serving.devices[number]
    root = page_root(device.blob)
    assert root is not None
    return HotDevice(device.size, root)


def _first_missing(plans: Sequence[FramePlan], blobs: Mapping[int, StoredBlob]) -> int:
    """The first frame of which something is not here."""
    for number, plan in enumerate(plans):
        if not all(blobs[part.device].has_pages(part.first, part.first + part.count - 1) for part in plan.given):
            return number
    return len(plans)


class _Incoming:
    """The parts of a blob one by one, taken up where they broke off; waits while the source is away.

    early: a pipe that they come through first, as long as it gives some.
    """

    def __init__(
        self, source: RangeTarget, what: Descriptor, sizes: Sequence[int], wait_limit_s: float, early: int
    ) -> None:
        self._source, self._what, self._limit_s, self._early = source, what, wait_limit_s, early
        self._offsets = [0, *accumulate(sizes)]
        self._next = 0
        self._parts: Iterator[bytes] | None = None

    def __next__(self) -> bytes | bytearray:
        if self._early >= 0:
            size = self._offsets[self._next + 1] - self._offsets[self._next]
            if len(data := _from_pipe(self._early, size)) == size:
                self._next += 1
                return data
            self._end_early()
        begun, pause = time.monotonic(), _PAUSE_S
        while True:
            try:
                if self._parts is None:
                    self._parts = self._from(self._next)
                part = next(self._parts)
            except (UnavailableError, OSError) as error:  # noqa: PERF203 - a network: asked again
                self._parts = None
                if time.monotonic() - begun > self._limit_s:
                    raise
                _log.warning("%s: hot bundle: %s", self._source.name, error)
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
                pause = min(pause * 2, _LONGEST_PAUSE_S)
            else:
                self._next += 1
                return part

    def proved(self, prove: Callable[[bytes | bytearray], _Proved]) -> tuple[bytes | bytearray, _Proved]:
        """The next part, and what ``prove`` makes of it; what a mirror sent in its place is asked for elsewhere.

        Raises:
            BadHotPage: from ``prove``.
        """
        while True:
            data = next(self)
            try:
                return data, prove(data)
            except BadHotPage as error:
                if self._early >= 0:
                    self._end_early()  # whoever it asked, we ask ourselves
                elif not isinstance(self._source, DistrustingTarget) or not self._source.distrust(self._what):
                    raise
                _log.warning("%s: %s: asking elsewhere", self._source.name, error)
                self._next, self._parts = self._next - 1, None

    def _end_early(self) -> None:
        os.close(self._early)
        self._early = -1

    def _from(self, number: int) -> Iterator[bytes]:
        offsets = self._offsets[number:]
        sizes = [end - start for start, end in pairwise(offsets)]
        if isinstance(self._source, PartsTarget):
            return cast("PartsTarget", self._source).fetch_parts(self._what, offsets[0], sizes)
        return (self._source.fetch_range(self._what, start, size) for start, size in zip(offsets, sizes, strict=False))


def _from_pipe(pipe: int, size: int) -> bytes | bytearray:
    """The next ``size`` bytes; fewer when it ends, or gives none for too long."""
    data, at = bytearray(size), 0
    room = memoryview(data)
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while at < size and poll.poll(_SILENT_S * 1000) and (got := os.readv(pipe, [room[at:]])):
        at += got
    return data if at == size else bytes(room[:at])
