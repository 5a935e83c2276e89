"""What a read is worth fetching besides follows from what was read near it."""

import pytest

from envbuilder.mount.fetch.guess import Cut, behind, run_from

COUNT = 1000
#: Chunks of 256 KiB, as layers have had; the windows are of bytes.
CUT = Cut(count=COUNT, size=256 << 10, most=16)


def cut(most):
    return Cut(count=COUNT, size=256 << 10, most=most)


def test_alone_it_is_a_few_that_follow():
    assert not run_from(100, set(), CUT)
    assert behind(100, set(), CUT, traced=False).start == 101


def test_where_a_trace_says_what_is_read_hardly_any_follow():
    assert len(behind(100, set(), CUT, traced=True)) < len(behind(100, set(), CUT, traced=False))


def test_a_run_upwards_goes_on_upwards_and_further_the_longer_it_is():
    short, long = run_from(100, {98, 99}, CUT), run_from(100, set(range(80, 100)), CUT)

    assert (short.start, long.start) == (101, 101)
    assert len(long) > len(short)
    assert behind(100, {98, 99}, CUT, traced=False) == short


def test_a_run_downwards_goes_on_downwards_and_is_not_fetched_upwards():
    read = {101, 102, 104, 106}
    run = run_from(100, read, CUT)

    assert run.stop == 100
    assert run.start < 94
    assert not behind(100, read, CUT, traced=False)


def test_a_run_may_have_gaps_but_not_wide_ones():
    assert run_from(100, {97, 94}, CUT)
    assert not run_from(100, {92, 91, 90}, CUT)


def test_where_runs_meet_the_much_longer_one_decides_and_else_little_is_fetched():
    assert run_from(100, {*range(88, 100), 102}, CUT).start == 101
    assert not run_from(100, {98, 99, 101, 102}, CUT)
    assert len(behind(100, {98, 99, 101, 102}, CUT, traced=False)) < 7


def test_a_run_ends_with_its_blob():
    assert run_from(COUNT - 1, {COUNT - 2}, CUT) == range(COUNT, COUNT)
    assert run_from(1, {2, 3}, CUT) == range(1)


@pytest.mark.parametrize("most", [1, 6, 32])
def test_a_guess_is_as_much_as_it_may_be(most):
    assert len(behind(100, set(), cut(most), traced=False)) == most - 1
    assert 1 <= len(run_from(100, {99}, cut(most))) < most + 2


def test_a_guess_has_no_more_bytes_where_chunks_are_larger():
    large = Cut(count=COUNT, size=1 << 20, most=4)

    assert len(run_from(100, set(range(80, 100)), large)) == 4
    assert not run_from(100, {98, 97}, large)
    assert len(behind(100, {99, 101}, large, traced=False)) == 1


def test_a_long_run_is_no_guess():
    assert len(run_from(100, set(range(80, 100)), cut(1))) > 10
