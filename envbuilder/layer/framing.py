"""Processes beside this one that compress and hash chunks while the caller makes the next: frame_worker.py's caller.

Measured on cudnn, 889 MB, two cores: as threads they took the interpreter's lock from each other, and the layer
was made no faster than by one.
"""

from __future__ import annotations

import mmap
import os
import queue
import select
import subprocess  # noqa: TID251 - the type of what proc.spawn returns
import sys

from envbuilder import proc
from envbuilder.errors import HostError
from envbuilder.layer.frame_worker import ANSWER, TASK, Frame, slot_size

#: Processes that can be kept busy: what the caller does to a chunk (inflate, three hashes, the disk) takes as long
#: as what they do (zstd, pages, a hash); where nothing is inflated they have twice its work.
_MOST = 3
#: Chunks that wait for a process or for their turn, for each process: a few milliseconds of work.
_SLOTS = 4
#: Chunks beside those that wait for their turn to be hashed and written, and for the disk.
_BEHIND = 8
#: Seconds between two looks at whether they live.
_LOOK_S = 0.2
_CODE = "import sys; sys.path[:] = {path!r}; from envbuilder.layer.frame_worker import serve; serve({words})"


class FramingDied(HostError):
    """A process that compressed for us is gone: killed, most often for want of memory."""

    hint = "Give the host more memory, or build with --jobs 1."


class Framing:
    """Up to ``count`` processes, and the memory that they share with us.

    A slot is taken (``take``), filled (``chunk``), given to them (``start``), and free again only after ``free``:
    the frame of an ``answer`` lies in it until then. They end with ``close``, or with us, however we end.

    Threading: one thread may take and start, another wait for answers and free.

    Raises:
        FramingDied: from ``start`` and ``answer``, when one of them is gone.
    """

    def __init__(self, count: int, *, chunk_size: int, level: int) -> None:
        count = min(count, _MOST)
        self._chunk_size, self._step = chunk_size, slot_size(chunk_size)
        self._most = count * _SLOTS
        slots = self._most + _BEHIND + 1
        self._free = list(range(slots))
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in self._free:
            self._tokens.put(None)
        self._started = self._answered = 0
        self._answers: dict[int, Frame] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        memory = os.memfd_create("frames")
        tasks, self._ask = os.pipe()
        self._hear, answers = os.pipe()
        try:
            os.ftruncate(memory, slots * self._step)
            self._shared = memoryview(mmap.mmap(memory, 0))
            theirs = (memory, tasks, answers)
            code = _CODE.format(path=sys.path, words=", ".join(map(str, (*theirs, chunk_size, level))))
            argv = [sys.executable, "-S", "-B", "-c", code]
            for _ in range(count):
                # A session of its own: Ctrl-C reaches the whole process group, and we alone answer it.
                self._processes.append(proc.spawn(argv, pass_fds=theirs, stdin=tasks, new_session=True))
        except BaseException:
            self.close()
            raise
        finally:
            for number in (memory, tasks, answers):
                os.close(number)
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)

    def take(self) -> int:
        """A free slot, once there is one."""
        self._tokens.get()
        return self._free.pop()

    def free(self, slot: int) -> None:
        """Nobody needs what is in ``slot`` any more."""
        self._free.append(slot)  # the last in is the first out: it is in a core's cache
        self._tokens.put(None)

    @property
    def is_busy(self) -> bool:
        """Whether as many chunks wait for them as are worth waiting."""
        return self._started - self._answered >= self._most

    def chunk(self, slot: int) -> memoryview:
        """Where the chunk of ``slot`` goes."""
        return self._shared[slot * self._step : slot * self._step + self._chunk_size]

    def start(self, slot: int, size: int) -> None:
        """Have the first ``size`` bytes of ``slot`` made a frame."""
        try:
            os.write(self._ask, TASK.pack(slot, size))
        except BrokenPipeError as error:
            raise self._died() from error
        self._started += 1

    def answer(self, slot: int) -> Frame:
        """What became of ``slot``, once it has been made."""
        while slot not in self._answers:
            while not self._poll.poll(_LOOK_S * 1000):
                if any(process.poll() is not None for process in self._processes):
                    raise self._died()
            data = os.read(self._hear, ANSWER.size)
            if not data:
                raise self._died()
            made, proofs, size, checksum = ANSWER.unpack(data)
            start = made * self._step + self._chunk_size
            middle = start + proofs
            self._answers[made] = Frame(self._shared[middle : middle + size], checksum, self._shared[start:middle])
            self._answered += 1
        return self._answers.pop(slot)

    def stop(self) -> None:
        """End them: nobody waits for what they have not done yet; again a no-op."""
        for process in self._processes:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End them, and forget what they made; again a no-op. No other thread may be in here."""
        self.stop()
        for number in (self._ask, self._hear):
            if number >= 0:
                os.close(number)
        self._ask = self._hear = -1

    def _died(self) -> FramingDied:
        statuses = [process.poll() for process in self._processes]
        return FramingDied(f"build: a process that compresses ended early: exit status {statuses}")
