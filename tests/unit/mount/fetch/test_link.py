"""Far and fast: the line is idle while a job waits. Near or slow: it is not."""

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
