"""What has to be done to chunks one after the other: the hash of their stream, that of the blob, and its writing.

None of it needs the interpreter, and on a large library it is a fifth of the work: a thread does it beside the one that
makes the chunks.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from envbuilder.digest import Digest
from envbuilder.layer.chunks import ChunkIndex
from envbuilder.layer.frame_worker import Frame
from envbuilder.layer.framing import Framing
from envbuilder.layer.tar import Writable


@runtime_checkable
class Hashing(Writable, Protocol):
    """A Writable that hashes what it is given, as a store's BlobWriter does: nobody need hash that again."""

    @property
    def digest(self) -> Digest:
        """Of all that was written so far."""


class Hashed:
    """A Hashing over any Writable."""

    def __init__(self, out: Writable) -> None:
        self._out, self._hash = out, hashlib.sha256()

    @property
    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())

    def write(self, data: bytes | memoryview, /) -> None:
        self._hash.update(data)
        self._out.write(data)


class InTurn:
    """Chunks that were appended to ``out``, with all that is known of them so far; ``nodes``: over their pages."""

    def __init__(self, out: Writable) -> None:
        self._out = out if isinstance(out, Hashing) else Hashed(out)
        self._diff_id = hashlib.sha256()
        self._offsets, self._blob_offsets, self._checksums = [0], [0], bytearray()
        self.nodes = bytearray()

    def append(self, chunk: memoryview, frame: Frame) -> None:
        """Take the next chunk, and write its frame."""
        self._diff_id.update(chunk)
        self.nodes += frame.nodes
        self._checksums += frame.checksum
        self._offsets.append(self._offsets[-1] + len(chunk))
        self._blob_offsets.append(self._blob_offsets[-1] + len(frame.data))
        self._out.write(frame.data)

    def write(self, data: bytes) -> Digest:
        """Write what is no chunk behind them; the digest of the blob with it."""
        self._out.write(data)
        return self._out.digest

    @property
    def diff_id(self) -> Digest:
        """Of the stream that the chunks are of."""
        return Digest("sha256:" + self._diff_id.hexdigest())

    @property
    def index(self) -> ChunkIndex:
        """Of all of them."""
        return ChunkIndex(
            offsets=tuple(self._offsets), blob_offsets=tuple(self._blob_offsets), checksums=bytes(self._checksums)
        )


@dataclass(frozen=True, slots=True)
class _Task:
    """A chunk in the order of the stream: the slot that it is in; its frame, unless a helper makes that."""

    slot: int
    size: int
    frame: Frame | None


class Behind:
    """Appends what ``framing`` and its caller make of chunks to ``out``, in a thread. For one caller.

    ``take`` raises what an earlier chunk raised, and so does ``finish``.
    """

    def __init__(self, out: InTurn, framing: Framing) -> None:
        self._out, self._framing = out, framing
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="append", daemon=True)
        self._thread.start()

    def take(self) -> int:
        """A free slot, once there is one."""
        slot = self._framing.take()
        if self._error is not None:
            raise self._error
        return slot

    def append(self, slot: int, size: int, frame: Frame | None) -> None:
        """Append the first ``size`` bytes of ``slot``; without ``frame`` they were given to a helper."""
        self._tasks.put(_Task(slot, size, frame))

    def finish(self) -> None:
        """Wait for all of them, and end."""
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End when what was given is done, or given up; again a no-op."""
        if self._thread.is_alive():
            self._tasks.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            if self._error is None:
                try:
                    self._append(task)
                except BaseException as error:  # noqa: BLE001  it is raised where the next chunk comes from
                    self._error = error
            self._framing.free(task.slot)

    def _append(self, task: _Task) -> None:
        frame = task.frame
        if frame is None:
            frame = self._framing.answer(task.slot)
        self._out.append(self._framing.chunk(task.slot)[: task.size], frame)
