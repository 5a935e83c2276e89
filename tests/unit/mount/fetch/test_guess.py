"""What a read is worth fetching besides follows from what was read near it."""

import pytest

from envbuilder.mount.fetch.guess import behind, run_from

COUNT, MOST = 1000, 16


def test_alone_it_is_a_few_that_follow():
    assert not run_from(100, set(), COUNT, most=MOST)
    assert behind(100, set(), COUNT, most=MOST, traced=False).start == 101


def test_where_a_trace_says_what_is_read_hardly_any_follow():
    assert len(behind(100, set(), COUNT, most=MOST, traced=True)) < len(
        behind(100, set(), COUNT, most=MOST, traced=False)
    )


def test_a_run_upwards_goes_on_upwards_and_further_the_longer_it_is():
    short, long = run_from(100, {98, 99}, COUNT, most=MOST), run_from(100, set(range(80, 100)), COUNT, most=MOST)

    assert (short.start, long.start) == (101, 101)
    assert len(long) > len(short)
    assert behind(100, {98, 99}, COUNT, most=MOST, traced=False) == short


def test_a_run_downwards_goes_on_downwards_and_is_not_fetched_upwards():
    read = {101, 102, 104, 106}
    run = run_from(100, read, COUNT, most=MOST)

    assert run.stop == 100
    assert run.start < 94
    assert not behind(100, read, COUNT, most=MOST, traced=False)


def test_a_run_may_have_gaps_but_not_wide_ones():
    assert run_from(100, {97, 94}, COUNT, most=MOST)
    assert not run_from(100, {92, 91, 90}, COUNT, most=MOST)


def test_where_runs_meet_the_much_longer_one_decides_and_else_little_is_fetched():
    assert run_from(100, {*range(88, 100), 102}, COUNT, most=MOST).start == 101
    assert not run_from(100, {98, 99, 101, 102}, COUNT, most=MOST)
    assert len(behind(100, {98, 99, 101, 102}, COUNT, most=MOST, traced=False)) < 7


def test_a_run_ends_with_its_blob():
    assert run_from(COUNT - 1, {COUNT - 2}, COUNT, most=MOST) == range(COUNT, COUNT)
    assert run_from(1, {2, 3}, COUNT, most=MOST) == range(1)


@pytest.mark.parametrize("most", [1, 6, 32])
def test_a_guess_is_as_much_as_it_may_be(most):
    assert len(behind(100, set(), COUNT, most=most, traced=False)) == most - 1
    assert 1 <= len(run_from(100, {99}, COUNT, most=most)) < most + 2


def test_a_long_run_is_no_guess():
    assert len(run_from(100, set(range(80, 100)), COUNT, most=1)) > 10
