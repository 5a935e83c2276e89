"""A start of an image that is whole on this node: the kernel reads the store's own files, and nobody serves.

The process that runs the command mounts for itself, in a mount name space that ends with it, and clears away at the
end. A guard, forked before, does that if it is killed; the guard that is killed is replaced. Each holds the lock of the
mount's folder and the layers' locks against eviction, so either may die. Killed both, they leave what the next command
clears away (state.py), like every mount. docs/decisions/0014-starts-of-whole-images.md.

It is for a process of one thread, and imports little: what it needs in the end, it imports then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.chunks.whole import hold, is_whole
from envbuilder.mount.folder import MountFolder
from envbuilder.mount.host import kernel
from envbuilder.mount.host.processes import kill_inside, source_name
from envbuilder.mount.host.writable import mount_writable

#: What ends us: our end is the command's, and the guard's.
END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: What the guard hears when there is nothing left for it to do.
_DONE = b"\0"
#: Bytes of the id of a mount.
_ID_SIZE = 6


class NotWhole(HostError):
    """Something of an image is not on this node, or not any more."""

    hint = "Start it again."


class Whole(NamedTuple):
    """An image that was whole on this node when it was last started.

    image: its digest. metadata: file with its EROFS metadata, and the sha256 (hex) that it had when it was verified.
    devices: sha256 (hex) and bytes of each layer's tar, in order. cache_dir: where the chunk store is.
    how: "erofs direct" or "loop direct". origin: where it is from.
    """

    image: str
    metadata: str
    metadata_sha256: str
    devices: tuple[tuple[str, int], ...]
    state_dir: str
    cache_dir: str
    how: str
    origin: str


class Direct(NamedTuple):
    """A mount for one command: its folder, the root file system in our mount name space, and its guard."""

    folder: MountFolder
    root: Path
    guard: Guard


class Guard:
    """The process that clears a mount away when we are killed. ``values``: of the mount's record, all but who it is."""

    def __init__(self, folder: MountFolder, scratch: Path, values: Mapping[str, Any]) -> None:
        self._folder, self._scratch, self._values = folder, scratch, values
        self._start()

    def _start(self) -> None:
        heard, self._told = os.pipe2(os.O_CLOEXEC)
        # What ends us must not be taken for its own before it is itself.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._told)
            _guard(heard, self._folder, self._scratch)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(heard)
        self._folder.write_values({**self._values, "supervisor": self.pid})

    def look(self) -> None:
        """Start another one if it was killed."""
        if os.waitpid(self.pid, os.WNOHANG)[0]:
            os.close(self._told)
            self._start()

    def dismiss(self) -> None:
        """Let it end: we have cleared away."""
        with suppress(OSError):  # it was killed
            os.write(self._told, _DONE)
        os.close(self._told)
        os.waitpid(self.pid, 0)


@contextmanager
def mounted(whole: Whole) -> Iterator[Direct]:
    """Mount ``whole``, with a writable layer that is thrown away, for as long as the context lasts.

    This process has a mount name space of its own from then on.

    Raises:
        NotWhole: a layer is not here any more. StateUnusable, MountRefused, NoLoopDevice, OSError: the host's.
    """
    held: list[int] = []
    try:
        devices = _held(whole, held)
        folder = MountFolder(Path(whole.state_dir), os.urandom(_ID_SIZE).hex())
        held.append(folder.create())
        scratch = Path(whole.cache_dir) / "scratch" / folder.id
        guard: Guard | None = None
        try:
            guard = Guard(folder, scratch, _values(whole, folder, scratch))
            yield Direct(folder, _mount(whole, devices, folder, scratch), guard)
        finally:
            _clear(folder, scratch)
            if guard is not None:
                guard.dismiss()
    finally:
        for each in held:
            os.close(each)


def blob_size(cache_dir: Path, digest: str) -> int:
    """Bytes of a layer's tar that is whole on this node.

    Raises:
        OSError: it is not here.
    """
    return (_blob(cache_dir, digest) / "data").stat().st_size


def _blob(cache_dir: Path, digest: str) -> Path:
    return cache_dir / "chunks" / "blobs" / digest


def _held(whole: Whole, held: list[int]) -> list[Path]:
    """The files of the layers, all of them whole; ``held`` gets what keeps them so."""
    files = []
    for digest, size in whole.devices:
        blob = _blob(Path(whole.cache_dir), digest)
        try:
            held.append(hold(blob))
        except OSError as error:
            raise NotWhole(f"{whole.image}: layer sha256:{digest}: {error.strerror}") from error
        if not is_whole(blob, size):
            raise NotWhole(f"{whole.image}: layer sha256:{digest}: not all of it is here")
        files.append(blob / "data")
    return files


def _values(whole: Whole, folder: MountFolder, scratch: Path) -> dict[str, Any]:
    """The mount's record (state.py), but for its guard."""
    root, lower = folder.path / "rootfs", folder.path / "lower"
    return {
        "id": folder.id,
        "directory": str(root),
        "image": whole.image,
        "how": whole.how,
        "writable": True,
        "private": True,
        "detached": False,
        "points": [str(root), str(scratch), str(lower)],
        "scratch": str(scratch),
        "started_at": time.time(),
        "layers": [digest for digest, _ in whole.devices],
        "origin": whole.origin,
        "metadata": whole.metadata,
        "keeper": os.getpid(),
    }


def _mount(whole: Whole, devices: Sequence[Path], folder: MountFolder, scratch: Path) -> Path:
    lower, root, metadata = folder.path / "lower", folder.path / "rootfs", Path(whole.metadata)
    kernel.private_mounts()
    if whole.how.startswith("loop"):
        from envbuilder.mount.host import loop  # noqa: PLC0415  of older kernels

        loop.mount(metadata, devices, lower)
    else:
        kernel.mount_erofs(metadata, devices, lower)
    mount_writable(lower, scratch, root, name=source_name(folder.id), nosuid=False)
    return root


def _clear(folder: MountFolder, scratch: Path) -> None:
    """Unmount what is mounted in our name space, and remove what was written."""
    import shutil  # noqa: PLC0415  not before the command has run

    for point in (folder.path / "rootfs", scratch, folder.path / "lower"):
        with suppress(EnvbuilderError):
            while kernel.unmount(point, force=True):
                pass
    shutil.rmtree(scratch, ignore_errors=True)
    folder.remove()


def _guard(heard: int, folder: MountFolder, scratch: Path) -> None:
    """The life of a guard; never returns."""
    status = 1
    try:
        os.setsid()
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # A pipe of the command's must not stay open for us, nor a folder busy.
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.chdir("/")
        if os.read(heard, 1) != _DONE:
            kill_inside(folder.id, spare=(os.getpid(),))
            _clear(folder, scratch)
        status = 0
    finally:
        os._exit(status)
