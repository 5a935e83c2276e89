"""The ring of waits: what is noted, what a killed worker leaves, what goes round."""

import errno
import threading

from envbuilder.mount.seen import waits
from envbuilder.mount.seen.waits import WaitLog, read_waits


def quiet(_error):
    pass


def test_a_read_that_waits_is_seen_while_it_waits_and_after(tmp_path):
    told = []
    done = WaitLog(tmp_path / "waits").noted(3, 4096, 8192, told.append)

    [now] = read_waits(tmp_path / "waits")
    done(None)
    [then] = read_waits(tmp_path / "waits")

    assert (now.device, now.offset, now.size, now.waiting) == (3, 4096, 8192, True)
    assert (then.waiting, then.failed) == (False, False)
    assert then.waited_s < 1
    assert told == [None]


def test_a_read_that_failed_says_so(tmp_path):
    error = OSError(errno.EIO, "away")
    told = []
    WaitLog(tmp_path / "waits").noted(0, 0, 1, told.append)(error)

    assert [wait.failed for wait in read_waits(tmp_path / "waits")] == [True]
    assert told == [error]


def test_the_next_worker_ends_what_a_killed_one_left_and_counts_on(tmp_path):
    first = WaitLog(tmp_path / "waits")
    first.noted(0, 1, 1, quiet)
    late = first.noted(0, 2, 1, quiet)

    second = WaitLog(tmp_path / "waits")
    second.noted(0, 3, 1, quiet)
    late(None)

    found = read_waits(tmp_path / "waits")
    assert sorted((wait.offset, wait.waiting) for wait in found) == [(1, False), (2, False), (3, True)]


def test_the_newest_are_kept(tmp_path):
    log = WaitLog(tmp_path / "waits")
    oldest = log.noted(0, 0, 1, quiet)
    for number in range(1, waits.KEPT + 10):
        log.noted(0, number, 1, quiet)(None)
    oldest(None)

    found = read_waits(tmp_path / "waits")

    assert len(found) == waits.KEPT
    assert {wait.offset for wait in found} == set(range(10, waits.KEPT + 10))
    assert not any(wait.waiting for wait in found)


def test_threads_do_not_disturb_each_other(tmp_path):
    log = WaitLog(tmp_path / "waits")

    def note(device):
        for number in range(200):
            log.noted(device, number, 1, quiet)(None)

    threads = [threading.Thread(target=note, args=(device,)) for device in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = read_waits(tmp_path / "waits")
    assert len({(wait.device, wait.offset) for wait in found}) == 1600
    assert not any(wait.waiting for wait in found)


def test_without_a_file_nothing_waited(tmp_path):
    assert read_waits(tmp_path / "none") == []
    (tmp_path / "short").write_bytes(b"x")
    assert read_waits(tmp_path / "short") == []
