"""A trace is a hint from anyone: what it may say, and how runs become one."""

import json
from dataclasses import replace

import pytest
import zstandard

from envbuilder.digest import Digest, canonical_json
from envbuilder.mount.startup.trace import Frame, InvalidTrace, Pages, Trace, groups_of, merge, of_reads, parse_trace

TRACE = Trace(
    image=Digest.of(b"image"),
    devices=(Digest.of(b"one"), Digest.of(b"two")),
    commands=("python3 -c 'import x'",),
    runs=2,
    read_ahead=16384,
    ranges=(Pages(1, 7, 3), Pages(0, 0, 1)),
    frames=(Frame(100, 4, Digest.of(b"frame").hex),),
    proofs=64,
)


@pytest.mark.parametrize("sizes", [(), (0, 4096)])
def test_a_trace_comes_back_as_it_was_stored(sizes):
    trace = replace(TRACE, sizes=sizes)

    assert parse_trace(trace.dump(), source="test") == trace


def test_a_trace_of_an_earlier_version_notes_no_sizes():
    value = json.loads(zstandard.ZstdDecompressor().decompress(TRACE.dump()))

    assert "sizes" not in value
    assert parse_trace(TRACE.dump(), source="test").dump() == TRACE.dump()


@pytest.mark.parametrize(
    "bad",
    [
        replace(TRACE, ranges=(Pages(2, 0, 4),)),
        replace(TRACE, ranges=(Pages(0, -1, 4),)),
        replace(TRACE, ranges=(Pages(0, 1 << 40, 4),)),
        replace(TRACE, ranges=(Pages(0, 0, 0), Pages(0, 0, 4))),
        replace(TRACE, ranges=(), frames=()),
        replace(TRACE, frames=(Frame(100, 5, Digest.of(b"frame").hex),)),
        replace(TRACE, frames=(Frame(1 << 30, 4, Digest.of(b"frame").hex),)),
        replace(TRACE, frames=(Frame(100, 4, "../x"),)),
        replace(TRACE, read_ahead=1 << 30),
        replace(TRACE, sizes=(1,)),
        replace(TRACE, sizes=(1, -1)),
        replace(TRACE, sizes=(1, 1 << 60)),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(bad):
    with pytest.raises(InvalidTrace):
        parse_trace(bad.dump(), source="test")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        zstandard.compress(b"[]"),
        zstandard.compress(b"{}"),
        zstandard.compress(canonical_json({"format": 2})),
    ],
)
def test_what_is_no_trace_is_refused(data):
    with pytest.raises(InvalidTrace):
        parse_trace(data, source="test")


@pytest.mark.parametrize(
    "ranges",
    [[[0, 1]], [[0, 1, 1, 1]], [[0] * 100], [[0, 1, True]], [[0, 1, 1.0]], ["0ab"], [{"a": 1}], [[]], {"a": 1}],
)
def test_ranges_that_are_not_three_numbers_each_are_refused(ranges):
    value = json.loads(zstandard.decompress(TRACE.dump()))
    value["ranges"] = ranges

    with pytest.raises(InvalidTrace):
        parse_trace(zstandard.compress(canonical_json(value)), source="test")


def test_a_trace_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked():
    with pytest.raises(InvalidTrace, match="want at most"):
        parse_trace(zstandard.compress(bytes(64 << 20)), source="test")


def test_a_frame_that_would_unpack_to_gigabytes_is_refused():
    count = 1 << 20
    bomb = replace(TRACE, ranges=(Pages(0, 0, count),), frames=(Frame(100, count, TRACE.frames[0].sha256),))

    with pytest.raises(InvalidTrace, match="want a number up to 2048"):
        parse_trace(bomb.dump(), source="test")


def test_reads_become_the_pages_that_they_touch():
    assert list(of_reads([(0, 4095, 2), (1, 8192, 4096)])) == [Pages(0, 0, 2), Pages(1, 2, 1)]


def test_merged_runs_hold_each_page_once_in_the_order_of_its_first_read():
    first = [Pages(0, 10, 2), Pages(1, 0, 1), Pages(0, 11, 3)]
    second = [Pages(0, 9, 2), Pages(1, 5, 1)]

    assert merge([first, second]) == (
        Pages(0, 10, 2), Pages(1, 0, 1), Pages(0, 12, 2), Pages(0, 9, 1), Pages(1, 5, 1),
    )  # fmt: skip


def test_neighbouring_reads_become_one_range():
    assert merge([[Pages(0, 0, 4), Pages(0, 4, 4), Pages(0, 8, 1)]]) == (Pages(0, 0, 9),)


def test_the_groups_that_ranges_touch_are_told_in_order():
    assert groups_of([Pages(0, 63, 2), Pages(1, 0, 1), Pages(0, 0, 1)]) == [(0, 0), (0, 1), (1, 0)]
