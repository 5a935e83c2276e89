"""The worker's side of a stream of hot pages: listens how far it is, and lets reads wait for it."""

from __future__ import annotations

import logging
import os
import select
import threading

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.fetch.promised import Promised
from envbuilder.mount.fetch.remote import Fetcher
from envbuilder.mount.fetch.schedule import Schedule
from envbuilder.mount.fetch.stream import COUNT, chunk_size, frame_plans, open_touched
from envbuilder.mount.request import Serving

_log = logging.getLogger(__name__)

#: Seconds without a frame after which reads no longer wait for the stream.
_STALL_S = 2.0


def await_stream(fetcher: Fetcher, serving: Serving, coming: int) -> bool:
    """Let reads of what a streamer brings wait for it; ``coming``: its pipe. False when the store cannot take pages."""
    assert serving.trace is not None
    trace = serving.trace.trace
    try:
        touched = open_touched(ChunkStore(serving.store), serving, trace)
    except (EnvbuilderError, OSError) as error:
        _log.warning("%s: started without its hot bundle: %s", serving.image, error)
        return False
    for number, stored in touched.items():
        fetcher.blobs[number].prepared(stored, chunk_size(serving.devices[number]))
    fetcher.schedule.promise(Promised(frame_plans(serving.trace), trace.frames))
    threading.Thread(target=_listen, args=(fetcher.schedule, coming), name="hot", daemon=True).start()
    return True


def _listen(schedule: Schedule, coming: int) -> None:
    poll = select.poll()
    poll.register(coming, select.POLLIN | select.POLLHUP)
    prepared = False
    while True:
        if not poll.poll(_STALL_S * 1000):
            schedule.stalled(ended=False)
            poll.poll()
        data = os.read(coming, COUNT.size * 512)
        if not data:
            break
        schedule.arrived(frames := COUNT.unpack(data[-COUNT.size :])[0])
        if frames and not prepared:
            # What no trace foresaw shall wait for its chunk alone, not for a connection and an index before.
            prepared = True
            schedule.want_indexes([blob for blob in schedule.blobs if blob.stored is not None], at_once=True)
    os.close(coming)
    schedule.stalled(ended=True)
