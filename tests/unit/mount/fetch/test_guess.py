"""What a read is worth fetching besides follows from what was read near it."""

from envbuilder.mount.fetch.guess import behind, run_from

COUNT = 1000


def test_alone_it_is_a_few_that_follow():
    assert not run_from(100, set(), COUNT)
    assert behind(100, set(), COUNT, traced=False).start == 101


def test_where_a_trace_says_what_is_read_hardly_any_follow():
    assert len(behind(100, set(), COUNT, traced=True)) < len(behind(100, set(), COUNT, traced=False))


def test_a_run_upwards_goes_on_upwards_and_further_the_longer_it_is():
    short, long = run_from(100, {98, 99}, COUNT), run_from(100, set(range(80, 100)), COUNT)

    assert (short.start, long.start) == (101, 101)
    assert len(long) > len(short)
    assert behind(100, {98, 99}, COUNT, traced=False) == short


def test_a_run_downwards_goes_on_downwards_and_is_not_fetched_upwards():
    read = {101, 102, 104, 106}
    run = run_from(100, read, COUNT)

    assert run.stop == 100
    assert run.start < 92
    assert not behind(100, read, COUNT, traced=False)


def test_a_run_may_have_gaps_but_not_wide_ones():
    assert run_from(100, {97, 94}, COUNT)
    assert not run_from(100, {92, 91, 90}, COUNT)


def test_where_runs_meet_the_much_longer_one_decides_and_else_little_is_fetched():
    assert run_from(100, {*range(88, 100), 102}, COUNT).start == 101
    assert not run_from(100, {98, 99, 101, 102}, COUNT)
    assert len(behind(100, {98, 99, 101, 102}, COUNT, traced=False)) < 7


def test_a_run_ends_with_its_blob():
    assert run_from(COUNT - 1, {COUNT - 2}, COUNT) == range(COUNT, COUNT)
    assert run_from(1, {2, 3}, COUNT) == range(1)
