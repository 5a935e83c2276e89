"""The supervisor: mounts, watches, unmounts. ``python -m envbuilder.mount.supervisor FD``.

One process for each mount. It holds the /dev/fuse descriptor and never parses network data; a
worker that dies is replaced and the kernel resends what it had not answered, so readers only wait.
It ends, and leaves nothing behind, when its mount is unmounted, when it gets SIGTERM, and, unless
the mount is to stay, when the process that asked for it is gone, however that died.

It is started early, imports while the other process still looks at the image, and stays
single-threaded, so that it can fork.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount import worker
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch.stream import is_usable
from envbuilder.mount.host import fuse, kernel, loop
from envbuilder.mount.host.daemon import end_signals, log_to
from envbuilder.mount.host.writable import mount_writable
from envbuilder.mount.request import MountRequest, NoLazyMount, Serving, receive_request, send_error, send_event
from envbuilder.mount.state import MountFolder, Record, kill_inside, kill_process, source_name, start_time

_log = logging.getLogger(__name__)

#: A worker that dies this often within this many seconds is not started again: then readers get EIO.
_RESTARTS, _RESTART_WINDOW_S = 8, 60.0
#: Seconds between looks at whether the mount is still there when nothing is heard of it.
_POLL_S = 30.0
#: What kernels before 6.12 say to a regular file as EROFS source, and those where backing files may not be stacked.
_NO_FILES = (errno.ENOTBLK, errno.EINVAL, errno.ELOOP, errno.EOPNOTSUPP)


class NoFuse(HostError):
    """/dev/fuse is missing, or refused to us."""

    hint = "Load the fuse module (modprobe fuse), or set mount.mode to unpack."


class WorkerFailed(HostError):
    """The worker ended with an error while everything was being fetched."""

    hint = "Read the log named in the message."


class _Supervisor:
    def __init__(self, channel: socket.socket, request: MountRequest) -> None:
        self._channel, self._request = channel, request
        self._folder = MountFolder(request.state_dir, request.id)
        self._points: list[Path] = []  # mounted, newest first
        self._fuse = -1
        self._worker, self._worker_handle = 0, -1
        self._deaths: list[float] = []
        self._stores: list[int] = []
        self._lock = -1
        self._flusher = 0
        self._streamer, self._coming = 0, -1
        self._tree: Path | None = None  # whose files are served, where EROFS is not to be had
        self._how = "unpacked"

    def run(self) -> None:
        """The life of a mount."""
        try:
            self._lock = self._folder.create()
        except EnvbuilderError as error:
            send_error(self._channel, error)
            return
        log_to(self._folder.log)
        wakeup = end_signals()
        try:
            try:
                self._mount()
            except (EnvbuilderError, OSError) as error:
                _log.warning("not mounted: %s", error)
                send_error(self._channel, error)
                return
            send_event(self._channel, "ready", pid=os.getpid(), how=self._how, id=self._request.id)
            self._watch(wakeup)
        finally:
            self._clear()
            os.close(self._lock)
            send_event(self._channel, "ended")

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
        if request.private:
            kernel.private_mounts()
        if request.metadata is not None and request.serving is not None:
            try:
                self._mount_erofs(request.metadata, request.serving, lower)
            except (kernel.MountRefused, loop.NoLoopDevice, NoFuse) as error:
                raise NoLazyMount(str(error), hint=error.hint) from error
        elif request.tree is not None and request.scratch is None:
            kernel.bind(request.tree, root, read_only=True, nosuid_nodev=True)
            self._points.insert(0, root)
        if request.scratch is not None:
            # Set-user-id programs and devices of a foreign image are for its container, not for this host's users.
            name, public = source_name(request.id), not request.private
            made = mount_writable(request.tree or lower, request.scratch, root, name=name, nosuid_nodev=public)
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
                how=request.mode if request.metadata else "unpacked",
                writable=request.scratch is not None,
                private=request.private,
                detached=request.detached,
                supervisor=os.getpid(),
                points=tuple(dict.fromkeys(str(point) for point in points)),
                scratch=str(request.scratch or ""),
                started_at=time.time(),
                layers=tuple(device.stored_as.hex for device in serving.devices) if serving else (),
                origin=serving.origin if serving else "",
            )
        )

    def _mount_erofs(self, metadata: Path, serving: Serving, target: Path) -> None:
        store = ChunkStore(serving.store)
        self._hold(store, serving)
        if serving.fetch_all and not self._complete(store, serving):
            self._fetch_all(serving)
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
            self._mount_tree(metadata, serving, target)
            return
        if lazy:
            self._start_fuse(serving)
        else:
            self._flusher = self._fork(lambda: worker.flush(serving, self._folder))
        known = kernel.read_ahead_names()
        try:
            how = self._mount_somehow(metadata, devices, target)
        except (kernel.MountRefused, loop.NoLoopDevice) as error:
            if self._request.mode != "auto":
                raise
            _log.info("%s: serving file by file", error)
            self._end_fuse()
            self._mount_tree(metadata, serving, target)
            return
        if self._request.read_ahead and lazy:
            kernel.set_read_ahead(kernel.read_ahead_names() - known, self._request.read_ahead)
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
        self._mount_loop(metadata, devices, target)
        return "loop"

    def _complete(self, store: ChunkStore, serving: Serving) -> bool:
        return all(store.is_complete(device.stored_as, device.size) for device in serving.devices)

    def _mount_tree(self, metadata: Path, serving: Serving, target: Path) -> None:
        """Show the image file by file, for a kernel that does not mount EROFS for us (treefs.py)."""
        self._tree = metadata
        self._start_fuse(serving, target)
        self._how = "fuse lazy"

    def _end_fuse(self) -> None:
        """Take back the mount of the devices and its worker."""
        if self._fuse < 0:
            return
        kernel.unmount(self._points.pop(0), force=True)
        os.close(self._fuse)
        self._fuse = -1
        self._end_worker()
        self._worker, self._worker_handle = 0, -1

    def _start_fuse(self, serving: Serving, at: Path | None = None) -> None:
        """Mount the file system that a worker serves: of the devices, or at ``at`` that of the tree."""
        blobs = at or self._folder.path / "blobs"
        if is_usable(serving) and not self._streamer:
            self._start_streamer(serving)
        try:
            self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise NoFuse(f"/dev/fuse: {error.strerror}") from error
        kernel.mount_fuse(self._fuse, blobs, name=source_name(self._request.id))
        self._points.insert(0, blobs)
        self._start_worker(serving)

    def _mount_loop(self, metadata: Path, devices: list[Path], target: Path) -> None:
        opened = []
        try:
            for file in [metadata, *devices]:
                opened.append(loop.attach(file))
            kernel.mount_erofs(opened[0][0], [device for device, _ in opened[1:]], target)
        finally:
            for _, descriptor in opened:
                os.close(descriptor)  # the mount holds them now; without it they free themselves

    # Workers.

    def _fork(self, body: Callable[[], None]) -> int:
        """The process id of a new process that runs ``body``."""
        pid = os.fork()
        if pid == 0:
            self._leave_parent()
            worker.main(body)
        return pid

    def _start_streamer(self, serving: Serving) -> None:
        """Started first: what the command will read is on its way while the rest is mounted."""
        self._coming, writer = os.pipe()
        self._streamer = self._fork(lambda: worker.bring(serving, self._folder.counters, writer))
        # Nobody else may hold that end: the worker learns of the streamer's end by it.
        os.close(writer)

    def _start_worker(self, serving: Serving) -> None:
        pid = self._fork(lambda: worker.serve(self._fuse, serving, self._folder, self._coming, self._tree))
        self._worker, self._worker_handle = pid, os.pidfd_open(pid)
        self._folder.write_worker(pid)

    def _leave_parent(self) -> None:
        """In a new worker: let go of what is the supervisor's, so that its end is seen as its end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._channel.close()
        os.close(self._lock)

    def _fetch_all(self, serving: Serving) -> None:
        """Everything into the store, by a worker, before anything is mounted."""
        reader, writer = os.pipe()

        def progress(done: int, total: int) -> None:
            os.write(writer, f"{done} {total}\n".encode())

        pid = self._fork(lambda: worker.fetch_all(serving, self._folder, progress))
        os.close(writer)
        last = 0.0
        with os.fdopen(reader) as lines:
            for line in lines:
                done, total = line.split()
                if time.monotonic() - last > 0.1:
                    last = time.monotonic()
                    if not send_event(self._channel, "progress", done=int(done), total=int(total)):
                        os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != 0:
            tail = self._folder.log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise WorkerFailed(f"{serving.image}: not all of it could be fetched: {tail} (log: {self._folder.log})")

    def _replace_worker(self) -> bool:
        """Start a worker in place of a dead one; False when that is hopeless or no longer wanted."""
        pid, status = os.waitpid(self._worker, 0)
        os.close(self._worker_handle)
        self._worker, self._worker_handle = 0, -1
        if status == 0:
            return False  # it saw the file system go
        now = time.monotonic()
        self._deaths = [death for death in self._deaths if now - death < _RESTART_WINDOW_S] + [now]
        _log.error("worker %d died: %s", pid, os.waitstatus_to_exitcode(status))
        if len(self._deaths) > _RESTARTS or self._request.serving is None:
            _log.error("it died %d times in a minute: reads fail from now on", len(self._deaths))
            os.close(self._fuse)
            self._fuse = -1
            return False
        Counters(self._folder.counters).add("restarts")
        self._start_worker(self._request.serving)
        try:
            fuse.resend(self._fuse)
        except OSError as error:
            _log.warning("reads that the dead worker had taken stay unanswered (Linux 6.9 resends them): %s", error)
        return True

    # Watching and clearing away.

    def _watch(self, wakeup: int) -> None:
        mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        os.read(mounts, 1)  # the kernel tells of changes from the first read on
        poll = select.poll()
        poll.register(mounts, select.POLLERR | select.POLLPRI)
        poll.register(wakeup, select.POLLIN)
        if not self._request.detached:
            poll.register(self._channel, select.POLLIN | select.POLLHUP)
        try:
            # Looked at first: it may be unmounted before we watch. Then after every change, told or not.
            while any(point.directory == self._request.directory for point in kernel.mount_points()):
                if self._worker_handle >= 0:
                    poll.register(self._worker_handle, select.POLLIN)
                for descriptor, _ in poll.poll(_POLL_S * 1000):
                    if descriptor == self._worker_handle:
                        poll.unregister(descriptor)
                        self._replace_worker()
                    elif descriptor == mounts:
                        os.lseek(mounts, 0, os.SEEK_SET)
                        os.read(mounts, 1)
                    else:
                        return  # SIGTERM, or the process that asked is gone
        finally:
            os.close(mounts)

    def _clear(self) -> None:
        if self._request.private:
            kill_inside(self._request.id, spare=(os.getpid(), self._worker, self._flusher, self._streamer))
        for point in self._points:
            with suppress(EnvbuilderError):
                kernel.unmount(point, force=True)
        if self._fuse >= 0:
            os.close(self._fuse)
        if self._worker:
            self._end_worker()
        for helper in filter(None, (self._flusher, self._streamer)):
            os.kill(helper, signal.SIGKILL)
            os.waitpid(helper, 0)
        for held in self._stores:
            os.close(held)
        if self._request.scratch is not None:
            shutil.rmtree(self._request.scratch, ignore_errors=True)
        self._folder.remove()

    def _end_worker(self) -> None:
        """It ends by itself, having flushed the store; if not, at once."""
        poll = select.poll()
        poll.register(self._worker_handle, select.POLLIN)
        if not poll.poll(5000):
            kill_process((self._worker, start_time(self._worker)))
        with suppress(ChildProcessError):
            os.waitpid(self._worker, 0)
        os.close(self._worker_handle)


def main() -> None:
    """Take a request from the descriptor in the first argument and live as long as its mount."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    request = receive_request(channel)
    if request is None:
        return
    try:
        _Supervisor(channel, request).run()
    except Exception as error:
        _log.exception("the supervisor ended")
        send_error(channel, error)
        raise


if __name__ == "__main__":
    main()
