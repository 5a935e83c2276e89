import os
import struct
import weakref

import pytest

from envbuilder.mount.counters import Counters
from envbuilder.mount.startup.hot import FramePlan, Part
from envbuilder.mount.startup.push import Pusher, joined

PAGE = 4096


class Blob:
    """Two and a half pages, each of its number."""

    size = 2 * PAGE + 2048

    def read(self, offset: int, into: memoryview) -> None:
        for place in range(len(into)):
            into[place] = (offset + place) // PAGE + 1


def frame(*parts: Part) -> FramePlan:
    return FramePlan((), parts)


@pytest.fixture
def counters(tmp_path):
    return Counters(tmp_path / "counters")


def opened(*parts: Part):
    return [(part, memoryview(bytes([part.first % 256]) * (part.count * PAGE))) for part in parts]


def test_neighbours_are_handed_over_together_in_the_order_of_the_frame():
    parts = (Part(0, 0, 62, 2), Part(0, 1, 64, 3), Part(1, 1, 67, 1), Part(0, 0, 2, 1))

    found = [[part for part, _ in neighbours] for neighbours in joined(opened(*parts))]

    assert found == [[*parts[:2]], [parts[2]], [parts[3]]]


def test_no_more_than_a_mebibyte_is_handed_over_at_a_time():
    parts = [Part(0, chunk, chunk * 64, 64) for chunk in range(5)]

    found = [[part for part, _ in neighbours] for neighbours in joined(opened(*parts))]

    assert found == [parts[:4], parts[4:]]


def test_what_arrives_is_written_as_the_kernel_takes_it(counters):
    reader, device = os.pipe()
    pusher = Pusher(device, [frame(Part(3, 0, 1, 2))], {3: Blob()}, counters)
    pusher.arrived(1)
    pusher.finish()
    os.close(device)
    with os.fdopen(reader, "rb") as written:
        data = written.read()

    size = PAGE + 2048  # the last page of a tar may be short
    assert struct.unpack_from("<IiQQQI4x", data) == (40 + size, 4, 0, 5, PAGE, size)
    assert data[40:] == b"\2" * PAGE + b"\3" * 2048
    assert counters.snapshot().pushed_pages == 2


class Unreadable:
    """A store that nobody needs to read."""

    size = 100 * PAGE

    def read(self, offset: int, into: memoryview) -> None:
        raise AssertionError((offset, len(into)))


def test_pages_that_are_in_memory_are_not_read_from_the_store(counters):
    reader, device = os.pipe()
    parts = (Part(3, 0, 5, 1), Part(3, 0, 6, 2))
    pusher = Pusher(device, [frame(*parts)], {3: Unreadable()}, counters)
    pusher.arrived(1, opened(*parts))
    pusher.finish()
    os.close(device)
    with os.fdopen(reader, "rb") as written:
        data = written.read()

    assert struct.unpack_from("<IiQQQI4x", data) == (40 + 3 * PAGE, 4, 0, 5, 5 * PAGE, 3 * PAGE)
    assert data[40:] == b"\5" * PAGE + b"\6" * (2 * PAGE)
    assert counters.snapshot().pushed_pages == 3


def test_frames_that_wait_too_long_are_read_from_the_store_and_cost_no_memory(counters):
    reader, device = os.pipe()
    blob, waiting = Blob(), 40
    part = Part(0, 0, 0, 1)
    with os.fdopen(reader, "rb") as taken:
        os.write(device, bytes(1 << 16))  # a full pipe: nothing is taken yet
        pusher = Pusher(device, [frame(part)] * waiting, {0: blob}, counters)
        held = []
        for number in range(waiting):
            pages = opened(part)
            held.append(weakref.ref(pages[0][1]))
            pusher.arrived(number + 1, pages)
        del pages
        alive = sum(each() is not None for each in held)
        taken.read(1 << 16)
        got = [taken.read(40 + PAGE)[40:41] for _ in range(waiting)]
        pusher.finish()
    os.close(device)

    assert alive <= 18  # sixteen in the queue, one on its way, one read from it
    assert got.count(b"\1") == waiting - got.count(b"\0") >= waiting - 18
    assert counters.snapshot().pushed_pages == waiting


def test_a_start_that_is_taken_up_hands_nothing_over_twice(counters):
    reader, device = os.pipe()
    plans = [frame(Part(0, 0, page, 1)) for page in range(3)]
    pusher = Pusher(device, plans, {0: Blob()}, counters)
    for frames in (2, 1, 2, 3):  # two were here; the bundle is read from its beginning all the same
        pusher.arrived(frames)
    pusher.finish()
    os.close(device)
    os.close(reader)

    assert counters.snapshot().pushed_pages == 3


def test_a_kernel_that_takes_nothing_is_left_alone(counters):
    reader, device = os.pipe()
    os.close(device)
    with os.fdopen(reader, "rb"):  # an end that cannot be written to
        pusher = Pusher(reader, [frame(Part(0, 0, 0, 1))], {0: Blob()}, counters)
        pusher.arrived(1)
        pusher.finish()

    assert counters.snapshot().pushed_pages == 0
