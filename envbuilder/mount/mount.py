"""Mount an image: prepare what the kernel needs, ask a supervisor for the mount, end it again.

``open_mount`` is a context manager and its mount ends with it, however this process dies;
``mount`` leaves one behind that ``unmount`` ends (unmount.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.errors import HostError, SpecError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.ahead import NOTHING, Ahead
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.counters import STARTER, Counters, Snapshot, read_counters
from envbuilder.mount.host import kernel
from envbuilder.mount.launch import Launched, spawned
from envbuilder.mount.prepare import MetadataRead, device_sizes
from envbuilder.mount.request import Device, MountRequest, NoLazyMount, Serving, events, send_request
from envbuilder.mount.settings import MountSettings
from envbuilder.mount.startup.traces import FoundTrace, TraceSearch
from envbuilder.mount.state import MountFolder, clear, reap
from envbuilder.store.mirrored import GivingTarget
from envbuilder.store.target import HostedTarget, RangeTarget, Target

if TYPE_CHECKING:
    from envbuilder.mount.foreign.image import ForeignImage

_log = logging.getLogger(__name__)

#: Gets what is done and what there is to do, chunks or bytes.
Progress = Callable[[int, int], None]
#: Bytes that EROFS reads ahead of a start that is recorded, and of each with its trace (docs/decisions).
RECORDED_READ_AHEAD = 8 << 10


class MountFailed(HostError):
    """A supervisor ended without saying why."""


class NeedsRoot(HostError):
    """Mounting is for root."""

    hint = "Run as root (sudo), or use `envbuilder run`, which needs no root."


class BadMountPoint(SpecError):
    """A mount point is not an empty directory."""

    hint = "Name an empty directory, or one that is not there yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """A mounted root file system. how: "erofs lazy", "erofs direct" (all local), "loop ...", "fuse lazy", "unpacked".

    traced: what it reads at the start is foreseen by a trace. metadata: file with its EROFS metadata.
    """

    id: str
    directory: Path
    how: str
    folder: MountFolder
    traced: bool = False
    metadata: Path | None = None

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
    ahead: Ahead = NOTHING,
    progress: Progress | None = None,
) -> Iterator[Mounted]:
    """Mount ``image`` for as long as the context lasts; nothing stays mounted whatever happens to this process.

    directory: an empty one; None: one in the state directory. writable: with a layer that is thrown away.
    full: fetch everything first. private: in a mount name space of its own (``Mounted.keeper``'s).
    record: note every read in ``Mounted.folder.reads``; a trace is not used then.
    ahead: what of it was begun before.

    Raises:
        BadMountPoint, HostError, UnavailableError, IntegrityError: see the leaf.
    """
    wanted = _Wanted(image=image, source=source, settings=settings, directory=directory, writable=writable, full=full)
    mounted, keeper = _ask(replace(wanted, private=private, record=record), ahead, progress)
    try:
        yield mounted
    finally:
        keeper.end()
        if (left := mounted.folder.read()) and not mounted.folder.is_alive():
            clear(mounted.folder, left, force=True)


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
    mounted, keeper = _ask(replace(wanted, detached=True), NOTHING, progress)
    keeper.let_go()
    return mounted


def require_root() -> None:
    """Nothing, for root.

    Raises:
        NeedsRoot: we are another user, to whom mounts are refused.
    """
    if os.geteuid() != 0:
        raise NeedsRoot("mount: want root: EROFS and overlay mounts are refused to other users")


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


def _ask(wanted: _Wanted, ahead: Ahead, progress: Progress | None) -> tuple[Mounted, Launched]:
    """A mount made as the settings say; where "auto" finds that this host has no lazy way, by unpacking."""
    try:
        return _ask_keeper(wanted, ahead, progress)
    except NoLazyMount as error:
        if wanted.settings.mode != "auto":
            raise
        _log.warning("no lazy start on this host (%s): unpacking the whole image", error)
        return _ask_keeper(replace(wanted, settings=replace(wanted.settings, mode="unpack")), NOTHING, progress)


def _ask_keeper(wanted: _Wanted, ahead: Ahead, progress: Progress | None) -> tuple[Mounted, Launched]:
    require_root()
    directory = _checked(wanted.directory) if wanted.directory is not None else None
    # Relative to our own working directory, which is not the supervisor's.
    settings = wanted.settings
    settings = replace(settings, state_dir=settings.state_dir.absolute(), cache_dir=settings.cache_dir.absolute())
    wanted = replace(wanted, directory=directory, settings=settings)
    reap(settings.state_dir)
    # Started first: it imports while we look at the image.
    keeper = ahead.keeper or spawned()
    try:
        id_ = secrets.token_hex(6)
        folder = MountFolder(settings.state_dir, id_)
        request = _request(wanted, folder, ahead, progress)
        early = ahead.search.early() if ahead.search else -1
        try:
            send_request(keeper.channel, request, early)
        finally:
            if early >= 0:
                os.close(early)
        for event in events(keeper.channel):
            if event["event"] == "progress" and progress is not None:
                progress(event["done"], event["total"])
            elif event["event"] == "ready":
                if isinstance(wanted.source, GivingTarget):
                    wanted.source.count_into(Counters(folder.counters, STARTER).add_given)
                mounted = Mounted(
                    id=id_,
                    directory=request.directory,
                    how=event["how"],
                    folder=folder,
                    traced=request.serving is not None and request.serving.trace is not None,
                    metadata=request.metadata,
                )
                return mounted, keeper
        raise MountFailed("the supervisor of the mount ended without a word", hint=f"Read {folder.log}.")
    except BaseException:
        keeper.give_up()
        raise


def _request(wanted: _Wanted, folder: MountFolder, ahead: Ahead, progress: Progress | None) -> MountRequest:
    image, source, settings = wanted.image, wanted.source, wanted.settings
    name, cache = str(image.root.digest), settings.cache_dir
    search = _search(wanted, ahead) if settings.mode != "unpack" else None
    metadata, tree, trace, trace_source = None, None, None, b""
    devices: tuple[Device, ...] = ()
    if image.lazy is not None and settings.mode != "unpack":
        metadata = (ahead.metadata or MetadataRead(source, cache)).file(image.lazy)
        sizes = device_sizes(metadata, image.lazy)
        devices = tuple(Device(blob, size) for blob, size in zip(image.lazy.devices, sizes, strict=True))
        # What is here whole needs no foresight, and does not wait for it.
        trace = search.result(image) if search and not _are_whole(devices, cache) else None
    elif settings.mode != "unpack" and (foreign := _foreign(image, source, settings, progress)):
        metadata, devices = foreign.metadata, foreign.devices
        if search and not _are_whole(devices, cache):
            trace = search.result(image)
            if trace is None and (found := _base_trace(image, source)):
                trace, trace_source = found[0], pickle.dumps(found[1])
    else:
        from envbuilder.mount.unpack.layers import unpacked  # noqa: PLC0415  not in a lazy start

        tree = unpacked(image, source, cache / "unpacked", progress or (lambda _done, _total: None))
    serving = None
    if metadata is not None:
        serving = Serving(
            image=name,
            devices=devices,
            store=cache / "chunks",
            source=pickle.dumps(source),
            connections=settings.connections,
            wait_limit_s=settings.wait_limit_s,
            answer_limit_s=settings.answer_limit_s,
            background=settings.background,
            fetch_all=wanted.full,
            trace=trace,
            trace_source=trace_source,
            record=wanted.record,
            quota=settings.quota,
            origin=source.name,
            server=source.host if isinstance(source, HostedTarget) else "",
            node_connections=settings.node_connections,
        )
    recorded = RECORDED_READ_AHEAD if wanted.record and serving is not None else 0
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
        read_ahead=trace.trace.read_ahead if trace else recorded,
        answer_limit_s=settings.answer_limit_s,
    )


def _search(wanted: _Wanted, ahead: Ahead) -> TraceSearch | None:
    """The search for the image's trace, begun; None: the start is to go without."""
    if not wanted.settings.trace or wanted.record or wanted.full:
        return None
    search = ahead.search or TraceSearch(wanted.source)
    if ahead.search is None:
        search.begin(wanted.image.descriptor)
    return search


def _are_whole(devices: Sequence[Device], cache: Path) -> bool:
    store = ChunkStore(cache / "chunks")
    return all(store.is_complete(device.stored_as, device.size) for device in devices)


def _base_trace(image: OpenImage, source: RangeTarget) -> tuple[FoundTrace, Target] | None:
    from envbuilder.mount.foreign.based import base_trace  # noqa: PLC0415  as ``_foreign``

    return base_trace(image, source)


def _foreign(
    image: OpenImage, source: RangeTarget, settings: MountSettings, progress: Progress | None
) -> ForeignImage | None:
    # A start of an image of ours does not wait for what reads those of others to be imported.
    from envbuilder.mount.foreign.image import foreign_image  # noqa: PLC0415  seldom needed

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
