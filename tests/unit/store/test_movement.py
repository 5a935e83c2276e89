import io
import threading
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.movement import Movement, in_turn
from envbuilder.store.pace import FIRST, Pace


def blobs_of(*sizes):
    return [describe(bytes([number]) * size) for number, size in enumerate(sizes)]


def test_large_and_small_blobs_go_in_turn():
    blobs = blobs_of(3, 1, 5, 4, 2)

    assert [blob.size for blob in in_turn(blobs)] == [5, 1, 4, 2, 3]
    assert [blob.size for blob in in_turn(blobs[:2])] == [3, 1]
    assert in_turn(blobs[:1]) == blobs[:1]
    assert in_turn([]) == []


@pytest.fixture
def source():
    source = MemoryTarget()
    for number in range(2 * FIRST):
        data = b"%d" % number
        source.push(describe(data), partial(io.BytesIO, data))
    return source


class Disk(MemoryTarget):
    """A target that has read all of a blob and then waits for its disk; ``reads``: or before it reads."""

    def __init__(self, *, reads):
        super().__init__()
        self.pace, self.reads = Pace(), reads
        self.waiting, self.may_end = threading.Semaphore(0), threading.Event()

    def push(self, what, content):
        with content() as stream:
            data = stream.read() if self.reads else b""
            self.waiting.release()
            self.may_end.wait(10)
            data = data or stream.read()
        super().push(what, partial(io.BytesIO, data))


@pytest.mark.parametrize(("reads", "at_once"), [(True, 2 * FIRST), (False, FIRST)])
def test_a_blob_that_has_passed_leaves_its_place_to_the_next(source, reads, at_once):
    target = Disk(reads=reads)
    blobs = [describe(b"%d" % number) for number in range(2 * FIRST)]
    mover = threading.Thread(target=lambda: Movement(source, target, None).all_of(blobs, 16))
    mover.start()

    assert all(target.waiting.acquire(timeout=5) for _ in range(at_once))
    assert not target.waiting.acquire(timeout=0.05)

    target.may_end.set()
    mover.join(10)
    assert all(target.has(blob) for blob in blobs)
