"""Counters of several processes and threads are one sum."""

import threading

from envbuilder.mount.counters import STARTER, WORKER, Counters, read_counters


def test_bytes_by_who_gave_them_are_exact_whatever_thread_counts(tmp_path):
    worker, starter = Counters(tmp_path / "c", WORKER), Counters(tmp_path / "c", STARTER)

    def count() -> None:
        for _ in range(5_000):
            worker.add_given(1, True)
            starter.add_given(2, False)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_counters(tmp_path / "c")

    assert (found.mirror_bytes, found.origin_bytes) == (20_000, 40_000)
