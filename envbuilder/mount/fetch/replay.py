"""The worker's side of a stream of hot pages: listens how far it is, and lets reads wait for it."""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from functools import partial

from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.fetch.promised import Promised
from envbuilder.mount.fetch.remote import Fetcher
from envbuilder.mount.fetch.schedule import Schedule
from envbuilder.mount.fetch.stream import COUNT, chunk_size, open_pages, touched
from envbuilder.mount.request import Serving
from envbuilder.mount.startup.delivery import AWAITED

#: Seconds without a frame after which reads no longer wait for the stream.
_STALL_S = 2.0


def await_stream(fetcher: Fetcher, serving: Serving, coming: int, asking: int) -> None:
    """Let reads of what a streamer brings wait for it; ``coming``: its pipe, ``asking``: that to it."""
    assert serving.trace is not None
    trace = serving.trace.trace
    store = ChunkStore(serving.store)
    for number in touched(trace):
        device = serving.devices[number]
        fetcher.blobs[number].expect(chunk_size(device), partial(open_pages, store, device))

    def ask(*what: int) -> None:
        with suppress(OSError):  # it is gone, or hears of more than it can read: then reads do not wait for long
            os.write(asking, AWAITED.pack(*what))

    fetcher.schedule.promise(Promised(trace.ranges, trace.frames, ask))
    threading.Thread(target=_listen, args=(fetcher.schedule, coming), name="hot", daemon=True).start()


def _listen(schedule: Schedule, coming: int) -> None:
    poll = select.poll()
    poll.register(coming, select.POLLIN | select.POLLHUP)
    while True:
        if not poll.poll(_STALL_S * 1000):
            schedule.stalled(ended=False)
            poll.poll()
        data = os.read(coming, COUNT.size * 512)
        if not data:
            break
        schedule.arrived(COUNT.unpack(data[-COUNT.size :])[0])
    os.close(coming)
    schedule.stalled(ended=True)
    # What no trace foresaw shall wait for its chunk alone, not for an index before; no core was free for them till now.
    schedule.want_indexes([blob for blob in schedule.blobs if blob.foreseen])
