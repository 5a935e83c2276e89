"""The supervisor: mounts, watches, unmounts.

One process for each mount. It holds the /dev/fuse descriptor and never parses network data; a
worker that dies is replaced and the kernel resends what it had not answered, so readers only wait.
It ends, and leaves nothing behind, when its mount is unmounted, when it gets SIGTERM, and, unless
the mount is to stay, when the process that asked for it is gone, however that died.

When it is killed itself, its keeper (keeper.py) starts another, which goes on with what is mounted.
It is single-threaded, so that it can fork.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch.stream import is_usable
from envbuilder.mount.heartbeat import KEEPER, SUPERVISOR, WORKER, Beats, Heart
from envbuilder.mount.host import fuse, kernel, loop
from envbuilder.mount.host.daemon import END_SIGNALS, signals
from envbuilder.mount.host.writable import mount_writable
from envbuilder.mount.request import MountRequest, NoLazyMount, Serving, send_error, send_event
from envbuilder.mount.startup.readahead import LOOK_S, ReadAhead
from envbuilder.mount.state import MountFolder, Record, kill_inside, source_name
from envbuilder.mount.workers import Workers, give_up

_log = logging.getLogger(__name__)

#: Seconds between looks at whether the mount is still there when nothing is heard of it.
_POLL_S = 30.0
#: What kernels before 6.12 say to a regular file as EROFS source, and those where backing files may not be stacked.
_NO_FILES = (errno.ENOTBLK, errno.EINVAL, errno.ELOOP, errno.EOPNOTSUPP)


class NoFuse(HostError):
    """/dev/fuse is missing, or refused to us."""

    hint = "Load the fuse module (modprobe fuse), or set mount.mode to unpack."


class SupervisorFailed(HostError):
    """A mount did not come about because a process of it was killed."""

    hint = "Start it again; if it was killed for memory, free some."


class Kept:
    """What a supervisor has from its keeper, and tells it.

    lock: descriptor of the folder's lock. keeper: its process id. link: to it. beats: of all.
    """

    #: What is told beside the process ids of workers.
    READY = b"ready"

    def __init__(self, channel: socket.socket, link: socket.socket, lock: int, keeper: int, beats: Beats) -> None:
        self.channel, self.lock, self.keeper, self._link, self.beats = channel, lock, keeper, link, beats

    def worker(self, pid: int) -> None:
        """Until we are ready, a mount that waits for a dead worker waits for ever: the keeper ends it. 0: no more."""
        with suppress(OSError):  # it is gone
            self._link.send(b"%d" % pid)

    def ready(self, device: int) -> None:
        """It is mounted; ``device``: the open /dev/fuse behind it, or -1."""
        with suppress(OSError):
            socket.send_fds(self._link, [self.READY], [device] if device >= 0 else [])

    def fileno(self) -> int:
        """Readable when the keeper is gone."""
        return self._link.fileno()

    def let_go(self) -> None:
        """In a worker: what the supervisor has must end with it."""
        self.channel.close()
        self._link.close()
        os.close(self.lock)


class Supervisor:
    """``run`` is its life. device: an open /dev/fuse that a supervisor before it has mounted, or -1."""

    def __init__(self, request: MountRequest, kept: Kept, device: int = -1) -> None:
        self._request, self._kept, self.device = request, kept, device
        self._folder = MountFolder(request.state_dir, request.id)
        self._points: list[Path] = []  # mounted, newest first
        self._workers = (
            Workers(request.serving, self._folder, kept.let_go, kept.beats, request.bundle) if request.serving else None
        )
        self._stores: list[int] = []
        self._tree: Path | None = None  # whose files are served, where EROFS is not to be had
        self._how = "unpacked"
        self._read_ahead: ReadAhead | None = None  # as the trace wants it

    def mount(self) -> bool:
        """Mount, and say so; watch until it ends. False when the keeper is gone, and all is left as it is."""
        with signals(*END_SIGNALS) as wakeup:
            try:
                self._mount()
            except (EnvbuilderError, OSError) as error:
                _log.warning("not mounted: %s", error)
                send_error(self._kept.channel, error)
                self._clear()
                return True
            except BaseException:
                self._clear()
                raise
            self._ready()
            return self._watch(wakeup)

    def resume(self, *, why_not: str = "") -> bool:
        """Go on with what a supervisor before us has mounted. ``why_not``: clear it away, as it cannot be used."""
        with signals(*END_SIGNALS) as wakeup:
            record = self._folder.read()
            if record is None:
                why_not = why_not or "its record is lost"
            else:
                self._points = [Path(point) for point in record.points]
                self._how = record.how
            if self._workers is not None and self._workers.adopt():
                _log.info("worker %d goes on", self._workers.pid)
            if why_not or record is None:
                send_error(self._kept.channel, SupervisorFailed(f"{self._request.image}: {why_not}"))
                self._clear()
                return True
            serving = self._request.serving
            if serving is not None:
                self._hold(ChunkStore(serving.store), serving)
                self._tree = self._request.metadata if record.how.startswith("fuse") else None
                if self.device >= 0 and self._workers is not None and self._workers.handle < 0:
                    self._start_worker_again(self._workers)
            self._ready()
            return self._watch(wakeup)

    # Mounting.

    def _mount(self) -> None:
        request, path = self._request, self._folder.path
        root = request.directory
        lower = root if request.scratch is None else path / "lower"
        try:
            Counters(self._folder.counters)
            self._record(lower)
        except OSError as error:
            raise self._folder.unusable(error) from error
        if request.metadata is not None and request.serving is not None and self._workers is not None:
            try:
                self._mount_erofs(request.metadata, request.serving, self._workers, lower)
            except (kernel.MountRefused, loop.NoLoopDevice, NoFuse) as error:
                raise NoLazyMount(str(error), hint=error.hint) from error
        elif request.tree is not None and request.scratch is None:
            kernel.bind(request.tree, root, read_only=True, nosuid_nodev=True)
            self._points.insert(0, root)
        if request.scratch is not None:
            # Set-user-id programs of a foreign image are for its container, not for this host's users.
            name, public = source_name(request.id), not request.private
            made = mount_writable(request.tree or lower, request.scratch, root, name=name, nosuid=public)
            self._points = [*made, *self._points]

    def _record(self, lower: Path) -> None:
        request, path, serving = self._request, self._folder.path, self._request.serving
        points = [request.directory, lower, path / "blobs"]
        if request.scratch is not None:
            points.insert(1, request.scratch)
        self._folder.write(
            Record(
                id=request.id,
                directory=str(request.directory),
                image=request.image,
                how="",
                writable=request.scratch is not None,
                private=request.private,
                detached=request.detached,
                keeper=self._kept.keeper,
                supervisor=os.getpid(),
                points=tuple(dict.fromkeys(str(point) for point in points)),
                scratch=str(request.scratch or ""),
                started_at=time.time(),
                layers=tuple(device.stored_as.hex for device in serving.devices) if serving else (),
                origin=serving.origin if serving else "",
                metadata=str(request.metadata or ""),
            )
        )

    def _ready(self) -> None:
        """Say who we are and that it is mounted: on disk, to the keeper, and to the process that asked."""
        record = self._folder.read()
        if record is not None:
            with suppress(OSError):  # a full disk: who looks for us finds the supervisor before us
                self._folder.write(replace(record, how=self._how, keeper=self._kept.keeper, supervisor=os.getpid()))
        self._kept.ready(self.device)
        send_event(self._kept.channel, "ready", how=self._how, id=self._request.id)

    def _mount_erofs(self, metadata: Path, serving: Serving, workers: Workers, target: Path) -> None:
        store = ChunkStore(serving.store)
        self._hold(store, serving)
        if serving.fetch_all and not self._complete(store, serving):
            workers.fetch_all(lambda done, total: send_event(self._kept.channel, "progress", done=done, total=total))
            self._hold(store, serving)
        devices = []
        for number, device in enumerate(serving.devices):
            # A complete blob is an ordinary file: the kernel reads it without us (and whatever becomes of us).
            if not serving.record and store.is_complete(device.stored_as, device.size):
                devices.append(store.blob(device.stored_as) / "data")
            else:
                devices.append(self._folder.path / "blobs" / str(number))
        lazy = serving.record or not self._complete(store, serving)
        if self._request.mode == "fuse":
            self._mount_tree(metadata, serving, workers, target)
            return
        if lazy:
            self._start_fuse(serving, workers)
        else:
            workers.start_flusher()
        known = kernel.read_ahead_names()
        try:
            how = self._mount_somehow(metadata, devices, target)
        except (kernel.MountRefused, loop.NoLoopDevice) as error:
            if self._request.mode != "auto":
                raise
            _log.info("%s: serving file by file", error)
            self._end_fuse(workers)
            self._mount_tree(metadata, serving, workers, target)
            return
        if self._request.read_ahead and lazy:
            made, counters = kernel.read_ahead_names() - known, Counters(self._folder.counters)
            read_ahead = ReadAhead(made, self._request.read_ahead, counters, workers.streams)
            self._read_ahead = None if serving.record else read_ahead
        self._how = f"{how} {'lazy' if lazy else 'direct'}"
        self._points.insert(0, target)

    def _hold(self, store: ChunkStore, serving: Serving) -> None:
        """Keep what is here of the image from being evicted; workers inherit the locks, and keep them if we die."""
        for held in self._stores:
            os.close(held)
        self._stores = []
        for device in serving.devices:
            with suppress(OSError):
                self._stores.append(store.hold(device.stored_as))

    def _mount_somehow(self, metadata: Path, devices: list[Path], target: Path) -> str:
        """Mount from files, and from loop devices if that is what the kernel takes; "erofs" or "loop"."""
        if self._request.mode != "loop":
            try:
                kernel.mount_erofs(metadata, devices, target)
                return "erofs"
            except kernel.MountRefused as error:
                if self._request.mode == "erofs" or error.errno not in _NO_FILES:
                    raise
                _log.info("%s: trying loop devices", error)
        loop.mount(metadata, devices, target)
        return "loop"

    def _complete(self, store: ChunkStore, serving: Serving) -> bool:
        return all(store.is_complete(device.stored_as, device.size) for device in serving.devices)

    def _mount_tree(self, metadata: Path, serving: Serving, workers: Workers, target: Path) -> None:
        """Show the image file by file, for a kernel that does not mount EROFS for us (treefs.py)."""
        self._tree = metadata
        self._start_fuse(serving, workers, target)
        self._how = "fuse lazy"

    def _start_fuse(self, serving: Serving, workers: Workers, at: Path | None = None) -> None:
        """Mount the file system that a worker serves: of the devices, or at ``at`` that of the tree."""
        blobs = at or self._folder.path / "blobs"
        try:
            self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NoFuse(f"/dev/fuse: {error.strerror}") from error
        kernel.mount_fuse(self.device, blobs, name=source_name(self._request.id))
        self._points.insert(0, blobs)
        if is_usable(serving):
            workers.start_streamer(self.device if at is None else -1)
        workers.start(self.device, self._tree)
        self._kept.worker(workers.pid)

    def _end_fuse(self, workers: Workers) -> None:
        """Take back the mount of the devices and its worker."""
        if self.device < 0:
            return
        self._kept.worker(0)
        kernel.unmount(self._points.pop(0), force=True)
        os.close(self.device)
        self.device = -1
        workers.end()

    # Watching and clearing away.

    def _watch(self, wakeup: int) -> bool:
        """Until the mount ends; False when the keeper has ended before, and all is left as it is."""
        mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        os.read(mounts, 1)  # the kernel tells of changes from the first read on
        poll = select.poll()
        poll.register(mounts, select.POLLERR | select.POLLPRI)
        poll.register(wakeup, select.POLLIN)
        poll.register(self._kept, select.POLLIN)
        if not self._request.detached:
            poll.register(self._kept.channel, select.POLLIN)
        heart = Heart(self._kept.beats, SUPERVISOR, self._request.answer_limit_s)
        heart.watch(KEEPER, self._kept.keeper)
        try:
            # Looked at first: it may be unmounted before we watch. Then after every change, told or not.
            while any(point.directory == self._request.directory for point in kernel.mount_points()):
                worker = self._workers.handle if self._workers else -1
                if worker >= 0:
                    poll.register(worker, select.POLLIN)
                heart.watch(WORKER, self._workers.pid if self._workers else 0)
                heard = heart.wait(poll, LOOK_S if self._read_ahead else _POLL_S)
                if self._read_ahead and not self._read_ahead.look():
                    self._read_ahead = None
                if worker in heard and self._workers is not None:
                    poll.unregister(worker)
                    self._replace_worker(self._workers)
                if mounts in heard:
                    os.lseek(mounts, 0, os.SEEK_SET)
                    os.read(mounts, 1)
                if wakeup in heard or self._kept.channel.fileno() in heard:
                    break  # SIGTERM, or the process that asked is gone
                if self._kept.fileno() in heard:
                    self._leave()
                    return False
        finally:
            heart.close()
            os.close(mounts)
        self._clear()
        return True

    def _replace_worker(self, workers: Workers) -> None:
        """Start a worker in place of a dead one, unless that is hopeless or no longer wanted."""
        if workers.lost():
            self._start_worker_again(workers)
        elif workers.is_hopeless:
            give_up(source_name(self._request.id))

    def _start_worker_again(self, workers: Workers) -> None:
        Counters(self._folder.counters).add("restarts")
        workers.start(self.device, self._tree)
        try:
            fuse.resend(self.device)
        except OSError as error:
            _log.warning("reads that the dead worker had taken stay unanswered (Linux 6.9 resends them): %s", error)

    def _leave(self) -> None:
        """Everything goes on without us; what keeps the image from being evicted stays with this process."""
        if self._workers is not None:
            self._workers.let_go()

    def _clear(self) -> None:
        workers = self._workers
        if self._request.private:
            spare = (os.getpid(), self._kept.keeper, *(workers.pids if workers else ()))
            kill_inside(self._request.id, spare=spare)
        for point in self._points:
            with suppress(EnvbuilderError):
                kernel.unmount(point, force=True)
        if self.device >= 0:
            os.close(self.device)
        if workers is not None:
            workers.end()
            workers.end_helpers()
        for held in self._stores:
            os.close(held)
        if self._request.scratch is not None:
            shutil.rmtree(self._request.scratch, ignore_errors=True)
        self._folder.remove()
        send_event(self._kept.channel, "ended")
