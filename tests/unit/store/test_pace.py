import threading

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
