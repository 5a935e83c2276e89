import os
import struct

import pytest

from envbuilder.mount.counters import Counters
from envbuilder.mount.startup.hot import FramePlan, Part
from envbuilder.mount.startup.push import Pusher, joined
from envbuilder.mount.startup.trace import Pages

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


def test_neighbours_are_handed_over_together_in_the_order_of_the_frame():
    plan = frame(Part(0, 0, 62, 2), Part(0, 1, 64, 3), Part(1, 1, 67, 1), Part(0, 0, 2, 1))

    assert list(joined(plan)) == [Pages(0, 62, 5), Pages(1, 67, 1), Pages(0, 2, 1)]


def test_no_more_than_a_mebibyte_is_handed_over_at_a_time():
    plan = frame(*(Part(0, chunk, chunk * 64, 64) for chunk in range(5)))

    assert list(joined(plan)) == [Pages(0, 0, 256), Pages(0, 256, 64)]


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


def test_a_kernel_that_takes_nothing_is_left_alone(counters):
    reader, device = os.pipe()
    os.close(device)
    with os.fdopen(reader, "rb"):  # an end that cannot be written to
        pusher = Pusher(reader, [frame(Part(0, 0, 0, 1))], {0: Blob()}, counters)
        pusher.arrived(1)
        pusher.finish()

    assert counters.snapshot().pushed_pages == 0
