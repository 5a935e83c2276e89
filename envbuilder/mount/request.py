"""What the process that starts a mount tells its supervisor, and what it hears back.

The request goes through a socket pair that only the two processes have: no credential is ever in
an argument, an environment or a file. Answers are lines of JSON.
"""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envbuilder.digest import Descriptor, Digest, canonical_json
from envbuilder.errors import EnvbuilderError, HostError, IntegrityError, RefusedError, SpecError, UnavailableError
from envbuilder.mount.chunks.eviction import NO_QUOTA, Quota
from envbuilder.mount.startup.traces import FoundTrace
from envbuilder.oci import media_types

_SIZE = struct.Struct("<Q")
#: Bytes of a request: some KiB for each of at most 127 layers.
_MAX_SIZE = 64 << 20
#: What a manifest says of a layer that its chunks and pages are proved by.
_PROOFS = (media_types.EROFS_CHUNK_INDEX_RANGE, media_types.EROFS_CHUNK_INDEX_DIGEST, media_types.LAYER_PAGES)
_FAMILIES: Mapping[int, type[EnvbuilderError]] = {
    family.exit_code: family
    for family in (EnvbuilderError, SpecError, IntegrityError, UnavailableError, HostError, RefusedError)
}


class NoLazyMount(HostError):
    """This host cannot mount an image that is not unpacked: no FUSE, no EROFS, no loop device."""


@dataclass(frozen=True, slots=True)
class Device:
    """One layer blob as EROFS reads it: ``size`` is of the uncompressed tar, in bytes.

    key, spans: of layers of others (foreign.py): its name in the chunk store, and how it lies in the blob.
    """

    blob: Descriptor
    size: int
    key: Digest | None = None
    spans: Path | None = None

    @property
    def stored_as(self) -> Digest:
        """Its name in the chunk store: of the layer and all that its chunks and pages are proved by.

        A manifest may say anything of a layer that another image has, too: who says otherwise shares nothing with it
        (docs/decisions/0015).
        """
        said = [self.blob.annotations.get(name, "") for name in _PROOFS]
        return self.key or Digest.of(canonical_json([str(self.blob.digest), self.size, *said]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a worker serves: ``devices`` of ``image``, from the pickled RangeTarget ``source``, through ``store``.

    wait_limit_s: how long a read waits for a source that is away. answer_limit_s: how often the worker shows that
    it can answer, ten times in so many seconds. background: fetch what nobody reads, too.
    fetch_all: fetch everything before the mount is ready. trace: what the start will read, or None.
    trace_source: the pickled RangeTarget that has its bundle, if that is another than ``source``.
    record: note every read in ``MountFolder.reads``; nothing is read past us then, whatever is complete.
    quota: what the store may take. origin: the source, in words. server: the one that is asked first, or "".
    node_connections: how many connections all mounts of this node have to it together; 0: no limit.
    """

    image: str
    devices: tuple[Device, ...]
    store: Path
    source: bytes
    connections: int = 8
    wait_limit_s: float = 300.0
    answer_limit_s: float = 30.0
    background: bool = False
    fetch_all: bool = False
    trace: FoundTrace | None = None
    trace_source: bytes = b""
    record: bool = False
    quota: Quota = NO_QUOTA
    origin: str = ""
    server: str = ""
    node_connections: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MountRequest:
    """One root file system to mount.

    id: names the mount in the state directory. directory: where it appears.
    metadata: EROFS image on disk, verified; None when ``tree`` is an unpacked root file system.
    mode: how EROFS reads its devices: "erofs" from files, "loop" from loop devices; "fuse": file by file, without
        EROFS; "auto" what works.
    scratch: folder on an ordinary disk for the writable layer; None: read-only.
    private: mount in a name space of the supervisor's own, which the kernel clears with its last process.
    detached: live on when the process that asked is gone.
    read_ahead: bytes that EROFS reads ahead; 0: what the kernel does by itself.
    answer_limit_s: a process of the mount that does not answer for so long is taken for hung (heartbeat.py).
    bundle: where the hot bundle comes from its beginning on (startup/early.py), a descriptor of who got the request.
    """

    id: str
    state_dir: Path
    directory: Path
    image: str
    serving: Serving | None = None
    metadata: Path | None = None
    tree: Path | None = None
    mode: str = "auto"
    scratch: Path | None = None
    private: bool = False
    detached: bool = False
    read_ahead: int = 0
    answer_limit_s: float = 30.0
    bundle: int = -1


def send_request(channel: socket.socket, request: MountRequest, bundle: int = -1) -> None:
    """Hand ``request`` to the supervisor, and ``bundle``, the end of a pipe to read from; -1: none."""
    data = pickle.dumps(request)
    # The size is a message of its own: what comes with it is lost to a reader that buffers.
    socket.send_fds(channel, [_SIZE.pack(len(data))], [bundle] if bundle >= 0 else [])
    channel.sendall(data)


def receive_request(channel: socket.socket) -> MountRequest | None:
    """The request of the process that started us; None if it died or gave up before it asked."""
    head, descriptors, _, _ = socket.recv_fds(channel, _SIZE.size, 1, socket.MSG_CMSG_CLOEXEC)
    if len(head) < _SIZE.size:
        return None
    size = _SIZE.unpack(head)[0]
    with channel.makefile("rb") as stream:
        data = stream.read(size) if size <= _MAX_SIZE else b""
    if len(data) < size:
        return None
    request = pickle.loads(data)  # noqa: S301 - from our own parent, through a socket that nobody else has
    return replace(request, bundle=next(iter(descriptors), -1)) if isinstance(request, MountRequest) else None


def send_event(channel: socket.socket, event: str, **fields: Any) -> bool:
    """Tell the other side; False when it is gone."""
    try:
        channel.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")
    except OSError:
        return False
    return True


def send_error(channel: socket.socket, error: BaseException) -> bool:
    """Tell the other side that it did not work, and why."""
    known = isinstance(error, EnvbuilderError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    return send_event(
        channel,
        "error",
        family=getattr(error, "exit_code", HostError.exit_code),
        message=text,
        hint=getattr(error, "hint", ""),
        lazy=not isinstance(error, NoLazyMount),
    )


def events(channel: socket.socket) -> Iterator[Mapping[str, Any]]:
    """What the supervisor says, until it ends.

    Raises:
        SpecError, IntegrityError, UnavailableError, HostError: it said that it did not work.
        NoLazyMount: unpacking may still work.
    """
    with channel.makefile("rb") as stream:
        for line in stream:
            event = json.loads(line)
            if event["event"] == "error":
                family = _FAMILIES.get(event["family"], HostError) if event["lazy"] else NoLazyMount
                raise family(event["message"], hint=event["hint"])
            yield event
