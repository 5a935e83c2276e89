"""The worker: the process that answers FUSE requests, and the only one that parses network data.

It has no state that dies with it: the supervisor forks another one over the same descriptor, and
the kernel hands out again what this one had not answered.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.chunks.eviction import enforce
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.counters import PULLER, SLOTS, STREAMER, Counters
from envbuilder.mount.erofstree import ErofsTree
from envbuilder.mount.fetch.remote import Fetcher
from envbuilder.mount.fetch.replay import await_stream
from envbuilder.mount.fetch.rounds import NOTHING, Share
from envbuilder.mount.fetch.slots import turns
from envbuilder.mount.fetch.stream import stream
from envbuilder.mount.heartbeat import Beats, keep_beating
from envbuilder.mount.host.fuse import NO_READ_AHEAD, READ_AHEAD, FuseServer
from envbuilder.mount.host.kernel import end_with_parent
from envbuilder.mount.host.memory import keep_freed
from envbuilder.mount.request import Serving
from envbuilder.mount.seen.waits import WaitLog
from envbuilder.mount.startup.reads import recorder
from envbuilder.mount.startup.trace import groups_of
from envbuilder.mount.state import MountFolder, in_use
from envbuilder.mount.treefs import TreeServer
from envbuilder.store.mirrored import GivingTarget
from envbuilder.store.target import RangeTarget

_log = logging.getLogger(__name__)

#: Threads that read requests: one may be in a page fault on the store's disk while the other answers.
_READERS = 2
#: The store's maps are made durable when no read has waited for so long: syncing competes with the start.
#: What was never flushed is believed until the next boot and fetched again after it.
_FLUSH_QUIET_S = 5.0
#: Processes of a full pull: four unpack some GB a second, more than links and disks give.
_MAX_PULLERS = min(4, SLOTS - PULLER)


def serve(
    device: int,
    serving: Serving,
    folder: MountFolder,
    coming: int,
    asking: int,
    beats: Beats,
    tree: Path | None = None,
) -> None:
    """Answer for ``serving`` on ``device``, an open and mounted /dev/fuse, until it is unmounted.

    coming: where a streamer tells how far it is, or -1. asking: where it is told what reads wait for.
    tree: EROFS metadata whose tree is served, not the devices.
    """
    fetcher = Fetcher(
        serving.image,
        serving.devices,
        ChunkStore(serving.store),
        Counters(folder.counters),
        connections=serving.connections,
        wait_limit_s=serving.wait_limit_s,
        turns=turns(folder.state_dir, serving.server, serving.node_connections),
    )
    # Counted under the lock that every read takes.
    keep_beating(beats, serving.answer_limit_s, fetcher.schedule.count)
    _note_waits(fetcher, folder)
    ready = threading.Event()
    if tree is not None:
        server: FuseServer = TreeServer(device, ErofsTree(tree), fetcher.blobs, ready=ready)
    else:
        observe = recorder(folder.reads) if serving.record else None
        read_ahead = NO_READ_AHEAD if serving.record or coming >= 0 else READ_AHEAD
        server = FuseServer(device, fetcher.blobs, observe=observe, ready=ready, read_ahead=read_ahead)
    readers = [threading.Thread(target=server.serve, name=f"fuse-{number}") for number in range(_READERS)]
    for thread in readers:
        thread.start()
    # Meanwhile the kernel mounts, for which it asks for names only.
    foreseen = coming >= 0
    if foreseen:
        await_stream(fetcher, serving, coming, asking)
    ready.set()
    # Mounting needs names and sizes only: the source's modules and connections come meanwhile.
    fetcher.start(open_source(serving, fetcher.counters), background=serving.background, foreseen=foreseen)
    if serving.trace is not None and not foreseen:
        trace = serving.trace.trace
        fetcher.schedule.want_groups(groups_of(trace.own))
        if trace.covers_most_of([each.size for each in serving.devices]):
            fetcher.schedule.want_rest(eager=True)
    flushed = fitted = fetcher.counters.snapshot().fetched_chunks
    while any(thread.is_alive() for thread in readers):
        readers[0].join(_FLUSH_QUIET_S)
        fetched = fetcher.counters.snapshot().fetched_chunks
        if fetched != fitted:
            fitted = fetched
            if make_room(serving, folder) and serving.background:
                _log.warning("%s: chunk store full of what is in use: only what is read is fetched", serving.image)
                fetcher.schedule.want_rest(eager=False, share=NOTHING)
        if fetched != flushed and fetcher.quiet_s() > _FLUSH_QUIET_S:
            flushed = fetched
            fetcher.flush()
    fetcher.stop()


def _note_waits(fetcher: Fetcher, folder: MountFolder) -> None:
    try:
        log = WaitLog(folder.waits)
    except OSError as error:
        _log.warning("what reads wait for is not noted: %s", error)
        return
    for blob in fetcher.blobs:
        blob.noted = log.noted


def make_room(serving: Serving, folder: MountFolder, *, need: int = 0) -> int:
    """Evict what nobody uses until the store is under its quota; bytes above it that stay. Never raises OSError."""
    try:
        plan = enforce(ChunkStore(serving.store), serving.quota, in_use(folder.state_dir), need=need)
    except OSError as error:
        _log.warning("chunk store %s: nothing evicted: %s", serving.store, error)
        return 0
    if plan.blobs:
        _log.info("chunk store %s: evicted %d blobs, %d bytes", serving.store, len(plan.blobs), plan.size)
    return plan.over


def fetch_all(serving: Serving, folder: MountFolder, progress: Callable[[int, int], None]) -> None:
    """Get every chunk into the store, with a process for each core: one interpreter cannot fill a fast link.

    Raises:
        SourceAway, StoreRefused: see ``Fetcher.fetch_all``.
    """
    store = ChunkStore(serving.store)
    missing = [each.size for each in serving.devices if not store.is_complete(each.stored_as, each.size)]
    make_room(serving, folder, need=sum(missing))
    count = min(os.cpu_count() or 1, _MAX_PULLERS)
    helpers = [_fork(partial(_fetch_share, serving, folder, (number, count))) for number in range(1, count)]
    try:
        fetcher = _fetcher(serving, folder, PULLER, count)
        fetcher.start(open_source(serving, fetcher.counters))
        try:
            fetcher.fetch_all(progress, share=(0, count), helped=lambda: _alive(helpers))
        finally:
            fetcher.stop()
    finally:
        for helper in helpers:
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)


def _fetch_share(serving: Serving, folder: MountFolder, share: Share) -> None:
    """What one helper of a full pull does; its parent does what is left if this fails."""
    fetcher = _fetcher(serving, folder, PULLER + share[0], share[1])
    fetcher.start(open_source(serving, fetcher.counters))
    fetcher.fetch_all(lambda _done, _total: None, share=share, helped=lambda: True)


def _fetcher(serving: Serving, folder: MountFolder, slot: int, processes: int) -> Fetcher:
    return Fetcher(
        serving.image,
        serving.devices,
        ChunkStore(serving.store),
        Counters(folder.counters, slot),
        connections=max(2, serving.connections // processes),
        wait_limit_s=serving.wait_limit_s,
        turns=turns(folder.state_dir, serving.server, serving.node_connections),
    )


def _fork(body: Callable[[], None]) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        main(body, parent=parent)
    return pid


def _alive(helpers: list[int]) -> bool:
    """Whether one of ``helpers`` still runs; those that ended stay to be waited for."""
    return any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None for pid in helpers)


def bring(serving: Serving, folder: MountFolder, progress: int, device: int, awaited: int, early: int) -> None:
    """Bring the hot bundle of ``serving``, into the kernel's cache too; as the whole of a process. See ``stream``."""
    counters, files = Counters(folder.counters, STREAMER), folder.path / "blobs"
    source = open_source(serving, counters, serving.trace_source)
    stream(serving, source, counters, progress, files=files, device=device, awaited=awaited, early=early)


def flush(serving: Serving, folder: MountFolder) -> None:
    """Make durable what the store has of these blobs, and the store fit its quota; slow, and nobody waits for it."""
    os.nice(19)
    make_room(serving, folder)
    store = ChunkStore(serving.store)
    for device in serving.devices:
        store.flush(device.stored_as, device.size)


def open_source(serving: Serving, counters: Counters, other: bytes = b"") -> RangeTarget:
    """The source, or the ``other``, with connections of its own; who gave what is counted."""
    source = pickle.loads(other or serving.source)  # noqa: S301 - made by our own parent
    if not isinstance(source, RangeTarget):
        raise HostError(f"{serving.image}: {type(source).__name__} cannot give parts of blobs")
    if isinstance(source, GivingTarget):
        source.count_into(counters.add_given)
    return source


def main(body: Callable[[], None], *, parent: int = 0) -> None:
    """Run ``body`` as the whole of a forked process, which ends with its ``parent`` if that is named; never returns."""
    status = 1
    try:
        if parent:
            end_with_parent(parent)
        keep_freed()
        body()
        status = 0
    except EnvbuilderError as error:
        _log.error("%s", error)
        status = error.exit_code
    except BaseException:  # noqa: BLE001 - a forked process must never return into its parent's code
        _log.exception("the worker ended")
    finally:
        logging.shutdown()
        os._exit(status)
