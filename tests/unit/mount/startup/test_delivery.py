"""The kernel gets the pages of a bundle first, the store what a read waits for, and the rest behind the start."""

import os
import struct
import threading
import weakref
from functools import partial

import pytest

from envbuilder.mount.counters import Counters
from envbuilder.mount.startup.delivery import AWAITED, Delivery
from envbuilder.mount.startup.hot import FramePlan, Part
from envbuilder.testing import waiting

PAGE = 4096
#: Bytes of a notification before its pages (fuse_out_header, fuse_notify_store_out).
HEAD = 40


class Blob:
    """A device in the store."""

    size = 1 << 30

    def __init__(self):
        self.pages = {}

    def write_pages(self, first, data, count):
        self.pages.update((first + at, bytes(data[at * PAGE : (at + 1) * PAGE])) for at in range(count))

    def read(self, offset, into):
        into[:] = b"".join(self.pages[offset // PAGE + at] for at in range(len(into) // PAGE))


def page(number):
    return bytes([number % 251]) * PAGE


def opened(plan):
    return [(part, memoryview(b"".join(page(part.first + at) for at in range(part.count)))) for part in plan.parts]


class Start:
    """A delivery of frames of two pages each, whose kernel takes what ``taken`` reads from its pipe."""

    def __init__(self, folder, frames, *, push=True):
        self.plans = [FramePlan((), (Part(0, 0, at * 10, 1), Part(0, 0, at * 10 + 5, 1))) for at in range(frames)]
        self.blob, self.told = Blob(), []
        self.taken, self.device = os.pipe()
        awaited, self.asking = os.pipe()
        self.counters = Counters(folder / "counters")
        self.files = folder
        (folder / "0").write_bytes(b"".join(page(at) for at in range(frames * 10)))
        self.delivery = Delivery(
            self.plans,
            {0: self.blob},
            self.counters,
            self.told.append,
            device=self.device if push else -1,
            awaited=awaited,
            files=folder,
        )

    def take(self):
        """The next page that the kernel gets: its number."""
        head = os.read(self.taken, HEAD)
        _, _, _, _, offset, size = struct.unpack("<IiQQQI4x", head)
        data = b""
        while len(data) < size:
            data += os.read(self.taken, size - len(data))
        assert data == page(offset // PAGE)
        return offset // PAGE

    def stop_kernel(self):
        """It takes nothing until ``go_on``."""
        os.write(self.device, bytes(1 << 16))

    def go_on(self):
        left = 1 << 16
        while left:
            left -= len(os.read(self.taken, left))

    def ask(self, frame, first, count=1):
        os.write(self.asking, AWAITED.pack(frame, 0, first, count))


@pytest.fixture
def start(tmp_path):
    made = []

    def make(frames, **how):
        made.append(Start(tmp_path, frames, **how))
        return made[-1]

    yield make
    for each in made:
        os.close(each.asking)


until = partial(waiting.until, timeout_s=10.0)


def test_the_kernel_gets_all_pages_and_the_store_gets_them_at_the_end(start):
    what = start(2)
    what.delivery.begin(0)
    for number, plan in enumerate(what.plans):
        what.delivery.deliver(number, opened(plan))

    assert [what.take() for _ in range(4)] == [0, 5, 10, 15]
    what.delivery.finish()
    assert what.blob.pages == {}
    what.delivery.keep()
    assert what.blob.pages == {at: page(at) for at in (0, 5, 10, 15)}
    assert what.told[-1] == 2
    assert what.told == sorted(what.told)


def test_what_can_no_longer_be_read_back_is_not_said_to_be_in_the_store(start):
    # A read that fails behind its first pages is short: what is missing would be served as zeros.
    what = start(2)
    what.plans[:] = [FramePlan((), (Part(0, 0, 0, 2),)), FramePlan((), (Part(0, 0, 8, 4),))]
    what.delivery.begin(0)
    for number, plan in enumerate(what.plans):
        what.delivery.deliver(number, opened(plan))
    what.delivery.finish()
    os.truncate(what.files / "0", 10 * PAGE)
    what.delivery.keep()

    assert what.blob.pages == {0: page(0), 1: page(1)}


def test_what_a_read_waits_for_is_in_the_store_before_the_kernel_gets_its_frame(start):
    what = start(2)
    what.stop_kernel()
    what.ask(1, 15)
    until(lambda: 1 in what.delivery._awaited)
    what.delivery.begin(0)
    for number, plan in enumerate(what.plans):
        what.delivery.deliver(number, opened(plan))

    assert what.blob.pages == {15: page(15)}  # and not the page beside it
    assert what.told[-1] == 0


def test_what_a_read_waits_for_while_the_kernel_gets_it_is_stored_at_once(start):
    # The kernel lets who pushes wait until that read is answered.
    what = start(1)
    what.stop_kernel()
    what.delivery.begin(0)
    what.delivery.deliver(0, opened(what.plans[0]))
    before = len(what.told)
    what.ask(0, 4, count=3)

    until(lambda: len(what.told) > before)
    assert what.blob.pages == {5: page(5)}


def test_who_waits_for_what_has_gone_by_is_told_again(start):
    what = start(1)
    what.delivery.begin(0)
    what.delivery.deliver(0, opened(what.plans[0]))
    until(lambda: what.told[-1] == 1)
    before = len(what.told)
    what.ask(0, 5)

    until(lambda: len(what.told) > before)
    assert what.told[-1] == 1


def test_frames_that_wait_for_the_kernel_too_long_go_into_the_store_and_cost_no_memory(start):
    what = start(40)
    what.stop_kernel()
    what.delivery.begin(0)
    held = []
    for number, plan in enumerate(what.plans):
        pages = opened(plan)
        held.append(weakref.ref(pages[0][1]))
        what.delivery.deliver(number, pages)
    del pages

    assert sum(each() is not None for each in held) == 16
    assert sorted(what.blob.pages) == [at for number in range(16, 40) for at in (number * 10, number * 10 + 5)]
    what.go_on()
    assert [what.take() for _ in range(80)] == [at for number in range(40) for at in (number * 10, number * 10 + 5)]


def test_what_the_kernel_does_not_take_goes_into_the_store(start):
    what = start(3)
    os.close(what.taken)
    what.delivery.begin(0)
    for number, plan in enumerate(what.plans):
        what.delivery.deliver(number, opened(plan))
    what.delivery.finish()

    assert sorted(what.blob.pages) == [0, 5, 10, 15, 20, 25]
    assert what.told[-1] == 3


def test_without_a_kernel_that_takes_pages_each_frame_is_stored_before_it_is_told(start):
    what = start(2, push=False)
    what.delivery.begin(0)
    seen = []
    for number, plan in enumerate(what.plans):
        what.delivery.deliver(number, opened(plan))
        seen.append((sorted(what.blob.pages), what.told[-1]))
    what.delivery.finish()
    what.delivery.keep()

    assert seen == [([0, 5], 1), ([0, 5, 10, 15], 2)]


def test_a_start_that_is_taken_up_gives_the_kernel_what_is_in_the_store_and_nothing_twice(start):
    what = start(3)
    for plan in what.plans[:2]:
        for part, pages in opened(plan):
            what.blob.write_pages(part.first, pages, part.count)
    what.delivery.begin(2)
    assert what.told == [2]
    what.delivery.deliver(2, opened(what.plans[2]))
    what.delivery.finish()

    assert [what.take() for _ in range(6)] == [0, 5, 10, 15, 20, 25]
    assert what.counters.snapshot().pushed_pages == 6


def test_nobody_is_told_once_all_has_gone_by(start):
    what = start(1)
    what.delivery.begin(0)
    what.delivery.deliver(0, opened(what.plans[0]))
    what.delivery.finish()
    before = list(what.told)
    what.ask(0, 5)
    threading.Event().wait(0.05)

    assert what.told == before
