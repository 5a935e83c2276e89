import os
import threading

from envbuilder.digest import describe
from envbuilder.errors import UnavailableError
from envbuilder.mount.startup.early import EarlyBundle
from envbuilder.store.memory import MemoryTarget

DATA = os.urandom(3 << 20)
HOT = describe(DATA, "application/x-hot")


class Parts(MemoryTarget):
    """A target that gives parts of DATA, up to ``until``."""

    def __init__(self, until: int = len(DATA)) -> None:
        super().__init__()
        self.until, self.asked = until, 0

    def fetch_parts(self, what, offset, sizes):
        self.asked += 1
        for size in sizes:
            if offset >= self.until:
                raise UnavailableError("it is away")
            yield DATA[offset : offset + size]
            offset += size


def read_all(pipe: int) -> bytes:
    with os.fdopen(pipe, "rb") as stream:
        return stream.read()


def ended() -> bool:
    for thread in threading.enumerate():
        if thread.name == "bundle":
            thread.join(5)
            return not thread.is_alive()
    return True


def test_a_bundle_comes_through_the_pipe():
    early = EarlyBundle(Parts())
    early.begin(HOT)

    assert read_all(early.take()) == DATA
    assert ended()


def test_a_pipe_ends_where_the_source_breaks_off():
    early = EarlyBundle(Parts(until=1 << 20))
    early.begin(HOT)

    assert read_all(early.take()) == DATA[: 1 << 20]


def test_nothing_goes_on_when_nobody_reads():
    early = EarlyBundle(Parts())
    early.begin(HOT)
    os.close(early.take())

    assert ended()


def test_what_was_taken_too_early_is_not_begun():
    source = Parts()
    early = EarlyBundle(source)

    assert early.take() == -1
    early.begin(HOT)
    assert source.asked == 0


def test_a_source_without_parts_is_left_alone():
    early = EarlyBundle(MemoryTarget())
    early.begin(HOT)

    assert early.take() == -1
