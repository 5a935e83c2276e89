"""Mount an image: prepare what the kernel needs, ask a supervisor for the mount, end it again.

``open_mount`` is a context manager and its mount ends with it, however this process dies;
``mount`` leaves one behind that ``unmount`` ends (unmount.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import secrets
import signal
import socket
import subprocess  # noqa: TID251 - the type of what proc.spawn returns
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from envbuilder import proc
from envbuilder.errors import HostError, SpecError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.chunks.eviction import NO_QUOTA, Quota
from envbuilder.mount.counters import Snapshot, read_counters
from envbuilder.mount.foreign.image import ForeignImage, foreign_image
from envbuilder.mount.host import kernel
from envbuilder.mount.prepare import device_sizes, metadata_file
from envbuilder.mount.request import Device, MountRequest, NoLazyMount, Serving, events, send_request
from envbuilder.mount.startup.traces import TraceSearch
from envbuilder.mount.state import MountFolder, clear, reap
from envbuilder.mount.unmount import END_S
from envbuilder.mount.unpack.layers import unpacked
from envbuilder.store.target import RangeTarget

_log = logging.getLogger(__name__)

Mode = Literal["auto", "erofs", "loop", "fuse", "unpack"]
#: Gets what is done and what there is to do, chunks or bytes.
Progress = Callable[[int, int], None]
#: Bytes that EROFS reads ahead of a start that is recorded, and of each with its trace (docs/decisions).
RECORDED_READ_AHEAD = 16 << 10
#: Bytes of what a supervisor says to the last that are read at a time.
END_SIZE = 4096


class MountFailed(HostError):
    """A supervisor ended without saying why."""


class NeedsRoot(HostError):
    """Mounting is for root."""

    hint = "Run as root (sudo), or use `envbuilder run`, which needs no root."


class BadMountPoint(SpecError):
    """A mount point is not an empty directory."""

    hint = "Name an empty directory that exists."


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings:
    """Where this node keeps what, and how it mounts.

    state_dir: what is mounted (/run/envbuilder); cache_dir: chunks, metadata, unpacked trees; must be on an
    ordinary disk. wait_limit_s: how long a read waits for a registry that is away before it fails.
    background: fetch the rest of the image while it runs. trace: use the image's start-up trace.
    quota: what the chunks on this node may take.
    layer_indexes: believe checkpoint indexes that a registry has beside gzip layers (foreign.py).
    """

    state_dir: Path
    cache_dir: Path
    mode: Mode = "auto"
    connections: int = 8
    wait_limit_s: float = 300.0
    background: bool = False
    trace: bool = True
    quota: Quota = NO_QUOTA
    layer_indexes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A mounted root file system. how: "erofs lazy", "erofs direct" (all local), "loop ...", "fuse lazy", "unpacked".

    traced: what it reads at the start is foreseen by a trace.
    """

    id: str
    directory: Path
    how: str
    folder: MountFolder
    traced: bool = False

    @property
    def keeper(self) -> int:
        """The process in whose mount name space it is; 0 when the mount has ended."""
        record = self.folder.read()
        return record.keeper if record else 0

    @property
    def supervisor(self) -> int:
        """The process that watches it; 0 when the mount has ended."""
        record = self.folder.read()
        return record.supervisor if record else 0

    def counters(self) -> Snapshot:
        """What it has fetched so far."""
        return read_counters(self.folder.counters)


@contextlib.contextmanager
def open_mount(
    image: OpenImage,
    source: RangeTarget,
    settings: MountSettings,
    *,
    directory: Path | None = None,
    writable: bool = False,
    full: bool = False,
    private: bool = False,
    record: bool = False,
    search: TraceSearch | None = None,
    progress: Progress | None = None,
) -> Iterator[Mounted]:
    """Mount ``image`` for as long as the context lasts; nothing stays mounted whatever happens to this process.

    directory: an empty one; None: one in the state directory. writable: with a layer that is thrown away.
    full: fetch everything first. private: in a mount name space of its own (``Mounted.keeper``'s).
    record: note every read in ``Mounted.folder.reads``; a trace is not used then.
    search: for the trace of ``image``, begun before.

    Raises:
        BadMountPoint, HostError, UnavailableError, IntegrityError: see the leaf.
    """
    wanted = _Wanted(image=image, source=source, settings=settings, directory=directory, writable=writable, full=full)
    asked = _ask(replace(wanted, private=private, record=record, search=search), progress)
    try:
        yield asked.mounted
    finally:
        asked.end()


def mount(
    image: OpenImage,
    source: RangeTarget,
    settings: MountSettings,
    directory: Path,
    *,
    writable: bool = False,
    full: bool = False,
    progress: Progress | None = None,
) -> Mounted:
    """Mount ``image`` at ``directory``, an empty one, until ``unmount``. Arguments and errors: ``open_mount``."""
    wanted = _Wanted(image=image, source=source, settings=settings, directory=directory, writable=writable, full=full)
    asked = _ask(replace(wanted, detached=True), progress)
    asked.let_go()
    return asked.mounted


def require_root() -> None:
    """Nothing, for root.

    Raises:
        NeedsRoot: we are another user, to whom mounts are refused.
    """
    if os.geteuid() != 0:
        raise NeedsRoot("mount: want root: EROFS and overlay mounts are refused to other users")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A mount that a supervisor of ours has made."""

    mounted: Mounted
    channel: socket.socket
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """Let the supervisor clear away, and wait for it."""
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_WR)
            self.channel.settimeout(END_S)
            # Keeper and supervisor have the other end: whoever of them lives clears away, and then it closes.
            while self.channel.recv(END_SIZE):
                pass
        _wait(self.process)
        self.channel.close()
        folder = self.mounted.folder
        if (record := folder.read()) and not folder.is_alive():
            clear(folder, record, force=True)

    def let_go(self) -> None:
        """Leave it to itself."""
        self.channel.close()
        self.process.returncode = 0  # it is to outlive us: no warning that it still runs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What the caller of ``open_mount`` or ``mount`` asks for; detached: the mount outlives us."""

    image: OpenImage
    source: RangeTarget
    settings: MountSettings
    directory: Path | None
    writable: bool
    full: bool
    private: bool = False
    detached: bool = False
    record: bool = False
    search: TraceSearch | None = None


def _ask(wanted: _Wanted, progress: Progress | None) -> _Asked:
    """A mount made as the settings say; where "auto" finds that this host has no lazy way, by unpacking."""
    try:
        return _ask_supervisor(wanted, progress)
    except NoLazyMount as error:
        if wanted.settings.mode != "auto":
            raise
        _log.warning("no lazy start on this host (%s): unpacking the whole image", error)
        return _ask_supervisor(replace(wanted, settings=replace(wanted.settings, mode="unpack")), progress)


def _ask_supervisor(wanted: _Wanted, progress: Progress | None) -> _Asked:
    require_root()
    directory = _checked(wanted.directory) if wanted.directory is not None else None
    # Relative to our own working directory, which is not the supervisor's.
    settings = wanted.settings
    settings = replace(settings, state_dir=settings.state_dir.absolute(), cache_dir=settings.cache_dir.absolute())
    wanted = replace(wanted, directory=directory, settings=settings)
    reap(settings.state_dir)
    # Started first: it imports while we look at the image.
    ours, theirs = socket.socketpair()
    with theirs:
        process = proc.spawn(_keeper_argv(theirs.fileno()), pass_fds=(theirs.fileno(),), new_session=True)
    try:
        id_ = secrets.token_hex(6)
        folder = MountFolder(settings.state_dir, id_)
        request = _request(wanted, folder, progress)
        send_request(ours, request)
        for event in events(ours):
            if event["event"] == "progress" and progress is not None:
                progress(event["done"], event["total"])
            elif event["event"] == "ready":
                mounted = Mounted(
                    id=id_,
                    directory=request.directory,
                    how=event["how"],
                    folder=folder,
                    traced=request.serving is not None and request.serving.trace is not None,
                )
                return _Asked(mounted, ours, process)
        raise MountFailed("the supervisor of the mount ended without a word", hint=f"Read {folder.log}.")
    except BaseException:
        ours.close()
        _wait(process)
        raise


def _request(wanted: _Wanted, folder: MountFolder, progress: Progress | None) -> MountRequest:
    image, source, settings = wanted.image, wanted.source, wanted.settings
    name, cache = str(image.root.digest), settings.cache_dir
    metadata, serving, tree, read_ahead = None, None, None, 0
    if image.lazy is not None and settings.mode != "unpack":
        search = None
        if settings.trace and not wanted.record and not wanted.full:
            search = wanted.search or TraceSearch(source)
            if wanted.search is None:
                search.begin(image.descriptor)
        metadata = metadata_file(source, image.lazy, cache)
        trace = search.result(image) if search else None
        read_ahead = trace.trace.read_ahead if trace else RECORDED_READ_AHEAD if wanted.record else 0
        sizes = device_sizes(metadata, image.lazy)
        serving = Serving(
            image=name,
            devices=tuple(Device(blob, size) for blob, size in zip(image.lazy.devices, sizes, strict=True)),
            store=cache / "chunks",
            source=pickle.dumps(source),
            connections=settings.connections,
            wait_limit_s=settings.wait_limit_s,
            background=settings.background,
            fetch_all=wanted.full,
            trace=trace,
            record=wanted.record,
            quota=settings.quota,
            origin=source.name,
        )
    elif settings.mode != "unpack" and (foreign := _foreign(image, source, settings, progress)):
        metadata = foreign.metadata
        serving = Serving(
            image=name,
            devices=foreign.devices,
            store=cache / "chunks",
            source=pickle.dumps(source),
            connections=settings.connections,
            wait_limit_s=settings.wait_limit_s,
            background=settings.background,
            fetch_all=wanted.full,
            record=wanted.record,
        )
    else:
        tree = unpacked(image, source, cache / "unpacked", progress or (lambda _done, _total: None))
    return MountRequest(
        id=folder.id,
        state_dir=folder.state_dir,
        directory=wanted.directory or folder.path / "rootfs",
        image=name,
        serving=serving,
        metadata=metadata,
        tree=tree,
        mode=settings.mode,
        scratch=cache / "scratch" / folder.id if wanted.writable else None,
        private=wanted.private,
        detached=wanted.detached,
        read_ahead=read_ahead,
    )


def _foreign(
    image: OpenImage, source: RangeTarget, settings: MountSettings, progress: Progress | None
) -> ForeignImage | None:
    if len(image.manifest.layers) > kernel.MAX_DEVICES:
        return None
    told = progress or (lambda _done, _total: None)
    return foreign_image(image, source, settings.cache_dir, progress=told, trusted=settings.layer_indexes)


def _checked(directory: Path) -> Path:
    try:
        found = directory.resolve(strict=True)
        empty = not any(found.iterdir())
    except OSError as error:
        raise BadMountPoint(f"{directory}: {error.strerror}") from error
    if not empty:
        raise BadMountPoint(f"{directory}: want an empty directory")
    return found


def _keeper_argv(channel: int) -> list[str]:
    """Isolated, but with our own import path: neither the working directory nor PYTHONPATH of root decides."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from envbuilder.mount.keeper import main; main()"
    )
    path = [entry for entry in sys.path if os.path.isabs(entry)]  # noqa: PTH117 - entries are strings
    return [sys.executable, "-I", "-c", code, str(channel), json.dumps(path)]


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        # All of them, or one would start the others again; they are a session of their own.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
