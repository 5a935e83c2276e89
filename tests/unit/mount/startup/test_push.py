import os
import struct

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
    pusher.push(0)
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
    pusher.push(0, opened(*parts))
    pusher.finish()
    os.close(device)
    with os.fdopen(reader, "rb") as written:
        data = written.read()

    assert struct.unpack_from("<IiQQQI4x", data) == (40 + 3 * PAGE, 4, 0, 5, 5 * PAGE, 3 * PAGE)
    assert data[40:] == b"\5" * PAGE + b"\6" * (2 * PAGE)
    assert counters.snapshot().pushed_pages == 3


def test_a_kernel_that_takes_nothing_is_left_alone(counters):
    reader, device = os.pipe()
    os.close(device)
    with os.fdopen(reader, "rb"):  # an end that cannot be written to
        pusher = Pusher(reader, [frame(Part(0, 0, 0, 1))], {0: Blob()}, counters)
        pusher.push(0)
        pusher.finish()

    assert counters.snapshot().pushed_pages == 0
    assert pusher.is_over
