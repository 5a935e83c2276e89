"""Slots of a node: as many as there are, reads first, free again with their process, and never a reason to fail."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from envbuilder.mount.fetch.slots import TRY_S, FreeTurn, Slots, turns

LIMIT = 4


@contextmanager
def another_process(file, *, reads, wanted):
    """Another process that takes ``wanted`` slots of ``file`` and holds them; its id and how many it got."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        slots = Slots(file, LIMIT)
        got = [slots.take(reads=reads) for _ in range(wanted)]
        os.write(writer, bytes([sum(slot is not None for slot in got)]))
        signal.pause()
    try:
        yield pid, os.read(reader, 1)[0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def taken(slots, *, reads, wanted=2 * LIMIT):
    return [slot for _ in range(wanted) if (slot := slots.take(reads=reads)) is not None]


def test_all_processes_together_get_as_many_as_there_are_and_a_quarter_is_for_reads(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    with another_process(tmp_path / "slots", reads=False, wanted=2) as (_, others):
        background = taken(ours, reads=False)

        assert others == 2
        assert len(background) == LIMIT - LIMIT // 4 - others


def test_a_read_finds_a_slot_though_the_background_has_all_it_may(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    with another_process(tmp_path / "slots", reads=False, wanted=LIMIT):
        assert taken(ours, reads=False) == []
        assert ours.take(reads=True) == 0


def test_a_read_has_one_of_its_mount_s_own_though_others_have_them_all(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    with another_process(tmp_path / "slots", reads=True, wanted=LIMIT):
        [own] = taken(ours, reads=True)
        ours.give(own)

        assert taken(ours, reads=True) == [own]


def test_what_a_killed_process_had_is_free_at_once(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    with another_process(tmp_path / "slots", reads=True, wanted=LIMIT) as (pid, _):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        assert len(taken(ours, reads=True)) == LIMIT + 1


def test_the_background_lets_another_process_that_waits_go_first(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    held = taken(ours, reads=False)
    with another_process(tmp_path / "slots", reads=False, wanted=1) as (_, others):
        ours.give(held[0])
        at_once = ours.take(reads=False)
        if (for_a_read := ours.take(reads=True)) is not None:
            ours.give(for_a_read)
        time.sleep(2 * TRY_S)
        later = ours.take(reads=False)

    assert others == 0
    assert at_once is None
    assert for_a_read is not None
    assert later is not None


def test_nobody_else_waits_and_the_next_slot_is_had_at_once(tmp_path):
    ours = Slots(tmp_path / "slots", LIMIT)
    held = taken(ours, reads=False)
    ours.give(held[0])

    assert ours.take(reads=False) == held[0]


def test_a_turn_for_a_read_waits_for_the_next_slot(tmp_path):
    make = turns(tmp_path, "registry.example:5000", 1)
    first, own, third = make(), make(), make()
    first.take()
    own.take()
    threading.Timer(0.05, first.give).start()
    begun = time.monotonic()
    third.take()

    assert time.monotonic() - begun > 0.04
    third.give()
    own.give()
    assert make().try_take()


@pytest.mark.parametrize(("host", "limit"), [("", 4), ("registry.example", 0)], ids=["no server", "no limit"])
def test_where_nothing_is_to_be_counted_nothing_is(tmp_path, host, limit):
    assert isinstance(turns(tmp_path, host, limit)(), FreeTurn)
    assert list(tmp_path.iterdir()) == []


def test_a_state_directory_that_cannot_be_written_costs_the_limit_only(tmp_path):
    (tmp_path / "connections").write_text("in the way")

    turn = turns(tmp_path, "registry.example", 1)()

    assert turn.try_take()
