"""Reads wait for a stream that brings their pages soon, and for nothing else."""

from dataclasses import dataclass, field

import pytest

from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.fetch.promised import Promised
from envbuilder.mount.startup.hot import plan_frames
from envbuilder.mount.startup.trace import Frame, Pages

RANGES = (Pages(0, 100, 300), Pages(0, 1000, 300))


@dataclass
class Blob:
    """What Promised asks of a LazyBlob."""

    number: int = 0
    here: set[int] = field(default_factory=set)

    def has_page(self, page):
        return page in self.here


def promised(size=1000, asked=lambda *_what: None):
    plans = plan_frames(RANGES)
    return Promised(RANGES, [Frame(size, plan.pages, "") for plan in plans], asked)


def park(what, page, *, blob=None, count=1, now=0.0):
    return what.park(blob or Blob(), page * PAGE_SIZE, count * PAGE_SIZE, lambda _error: None, now, 100.0)


def test_a_read_of_coming_pages_waits_until_their_frame_is_here():
    what = promised()

    assert park(what, 1299)  # the second frame: pages 1212 to 1299
    assert what.arrived(1, 0.0) == []
    assert [parked.frame for parked in what.arrived(2, 0.0)] == [1]


def test_who_brings_the_stream_is_asked_for_the_pages_that_a_read_waits_for():
    asked = []
    what = promised(asked=lambda *pages: asked.append(pages))

    assert park(what, 1211, count=2)  # the last of the first frame, the first of the second
    assert sorted(asked) == [(0, 0, 1211, 2), (1, 0, 1211, 2)]


def test_a_read_need_not_wait_for_its_frame_once_its_pages_are_in_the_store():
    what, blob = promised(), Blob()
    park(what, 150, blob=blob)
    park(what, 160)

    assert what.arrived(0, 0.0) == []
    blob.here.add(150)
    assert [parked.offset // PAGE_SIZE for parked in what.arrived(0, 0.0)] == [150]


def test_a_read_of_what_has_gone_by_and_of_what_is_coming_waits_only_if_the_one_is_here():
    what = promised()
    what.arrived(1, 0.0)

    assert not park(what, 1211, count=2)
    assert park(what, 1211, count=2, blob=Blob(here={1211}))


@pytest.mark.parametrize("page", [400, 5000])
def test_a_read_of_a_page_that_is_not_coming_does_not_wait(page):
    assert not park(promised(), page)


def test_a_read_of_which_one_page_is_not_coming_waits_only_if_that_is_here():
    assert not park(promised(), 399, count=2)
    assert park(promised(), 399, count=2, blob=Blob(here={400}))


def test_a_read_of_another_device_does_not_wait():
    assert not park(promised(), 100, blob=Blob(number=1))


def test_a_read_of_what_has_come_and_is_not_here_does_not_wait():
    what = promised()
    what.arrived(1, 0.0)

    assert not park(what, 100)


def test_a_read_far_ahead_of_a_slow_stream_does_not_wait():
    what = promised(size=4 << 20)
    what.arrived(1, 0.0)

    assert park(what, 1299, now=0.01)  # nobody knows yet
    assert not park(what, 1299, now=1000.0)


def test_when_the_stream_stalls_reads_are_released_and_none_waits_until_it_goes_on():
    what = promised()
    park(what, 1299)

    assert len(what.release(ended=False)) == 1
    assert not park(what, 1299)
    what.arrived(1, 0.0)
    assert park(what, 1299)


def test_when_the_stream_ended_no_read_waits():
    what = promised()
    what.release(ended=True)
    what.arrived(1, 0.0)

    assert what.ended
    assert not park(what, 1299)
