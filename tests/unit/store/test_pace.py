import threading
from contextlib import ExitStack

from envbuilder.store.pace import FIRST, LEAST, MOST, Pace


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def filled(pace, stack):
    while len(stack) < pace.width:
        slot = pace.slot()
        slot.__enter__()
        stack.append(slot)


def test_a_full_gate_widens_with_success_and_no_further_than_its_bound():
    pace, inside = Pace(), []
    filled(pace, inside)
    for _ in range(FIRST + 1):
        pace.faster()
    assert pace.width == FIRST + 1
    for _ in range(1000):
        filled(pace, inside)
        pace.faster()

    assert pace.width == MOST


def test_success_without_a_queue_says_nothing():
    pace = Pace()
    for _ in range(100):
        pace.faster()

    assert pace.width == FIRST


def test_a_complaint_halves_the_gate_once_a_burst():
    clock = Clock()
    pace = Pace(clock=clock)
    pace.slower()
    pace.slower()
    assert pace.width == FIRST // 2
    for _ in range(10):
        clock.now += 2
        pace.slower()

    assert pace.width == LEAST


def test_no_more_are_inside_than_the_gate_is_wide():
    pace, guard = Pace(), threading.Lock()
    now, most = [0], [0]

    def work():
        with pace.slot():
            with guard:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.002)
            with guard:
                now[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert most[0] <= FIRST


def test_who_is_about_to_end_takes_no_place():
    pace, entered = Pace(), []

    with ExitStack() as stack:
        for _ in range(2 * FIRST):
            end = stack.enter_context(pace.slot())
            entered.append(end)
            end()
            end()

        assert len(entered) == 2 * FIRST
        # A host is never asked for more than twice as much.
        waiting = threading.Thread(target=lambda: pace.slot().__enter__())
        waiting.start()
        assert not threading.Event().wait(0.05)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_gate_whose_places_all_wait_for_their_end_widens_too():
    pace = Pace()
    with ExitStack() as stack:
        for _ in range(2 * FIRST):
            stack.enter_context(pace.slot())()
        for _ in range(FIRST + 1):
            pace.faster()

    assert pace.width == FIRST + 1
