"""Time in which a process stood still counts for nobody."""

from envbuilder.mount.fetch import awake
from envbuilder.mount.fetch.awake import AwakeClock


def test_time_in_which_nobody_read_it_is_left_out(monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr(awake.time, "monotonic", lambda: seconds[0])
    clock = AwakeClock()
    read = []
    for passed in (0.5, 4.5, 3600.0, 0.5):
        seconds[0] += passed
        read.append(clock.now() - 100.0)

    assert read == [0.5, 5.0, 5.0, 5.5]
