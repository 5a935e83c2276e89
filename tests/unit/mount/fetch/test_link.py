"""Far and fast: the line is idle while a job waits. Near or slow: it is not. What a guess is worth follows from it."""

import pytest

from envbuilder.mount.fetch.link import Link


@pytest.mark.parametrize(
    ("answer_s", "rate", "idle"),
    [(0.05, 100e6, True), (0.05, 5e6, False), (0.005, 500e6, False), (0.3, 12e6, True)],
)
def test_the_line_is_idle_where_a_miss_is_mostly_a_round_trip(answer_s, rate, idle):
    link = Link()
    for _ in range(10):
        link.told(answer_s, 1_000_000 / rate, 1_000_000)

    assert link.is_idle == idle


def test_a_full_line_answers_late_and_is_not_idle():
    link = Link()
    link.told(0.004, 0.01, 1_000_000)
    for _ in range(10):
        link.told(0.08, 0.01, 1_000_000)

    assert not link.is_idle


def test_nothing_is_known_of_a_link_that_was_not_used():
    assert not Link().is_idle


def told(answer_s: float, rate: float) -> Link:
    link = Link()
    for _ in range(30):
        link.told(answer_s, 1_000_000 / rate, 1_000_000)
    return link


def test_a_guess_is_worth_what_the_line_brings_while_some_misses_last():
    assert told(0.005, 100e6).worth == pytest.approx(2.5 * 0.005 * 100e6)


def test_a_guess_is_worth_more_where_answers_are_slow_and_less_where_the_line_is():
    assert told(0.002, 100e6).worth < told(0.005, 100e6).worth < told(0.01, 100e6).worth
    assert told(0.005, 60e6).worth < told(0.005, 100e6).worth


def test_one_slow_answer_does_not_decide_what_a_guess_is_worth():
    link = told(0.005, 100e6)
    link.told(0.02, 0.01, 1_000_000)

    assert link.worth < 2 * told(0.005, 100e6).worth


@pytest.mark.parametrize(("answer_s", "rate"), [(1e-6, 1e9), (1e-6, 1e3), (30.0, 1e9), (0.2, 12e6)])
def test_a_guess_is_bounded_whatever_the_link_does(answer_s, rate):
    assert 500_000 < told(answer_s, rate).worth < 4_000_000


def test_a_link_that_is_far_has_room_for_all_but_some_connections():
    assert told(0.05, 100e6).for_ahead(8) == told(0.05, 100e6).for_background(8) == 6
    assert told(0.002, 100e6).for_ahead(8) < told(0.002, 100e6).for_background(8) < 6
    assert told(0.05, 100e6).for_ahead(1) == 1


def test_a_large_rest_does_not_use_a_line_that_guesses_can_fill():
    link = told(0.025, 80e6)
    assert link.is_idle

    link.rest = 3_000_000_000
    assert not link.is_idle
    assert link.for_background(8) < link.for_ahead(8)


def test_a_large_rest_uses_a_line_that_guesses_cannot_fill():
    link = told(0.1, 80e6)
    link.rest = 3_000_000_000

    assert link.is_idle
