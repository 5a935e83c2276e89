"""Who has stopped answering is told from who is merely slow, and from an observer that was itself away."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from envbuilder.mount.heartbeat import LOOKS, SUPERVISOR, WORKER, Activity, Beats, Heart, Pulse, activity

LIMIT_S = 0.3
STOPPED, ASLEEP = Activity(frozenset("T"), 1.0), Activity(frozenset("S"), 1.0)


def looks(pulse: Pulse, count: int, seen: Activity, times: int = LOOKS) -> list[bool]:
    return [pulse.look(count, lambda: seen) for _ in range(times)]


@pytest.mark.parametrize("seen", [STOPPED, ASLEEP], ids=["stopped", "blocked for ever"])
def test_one_that_does_not_move_for_all_looks_is_hung(seen):
    pulse = Pulse(LIMIT_S)
    pulse.look(7, lambda: seen)

    assert looks(pulse, 7, seen) == [False] * (LOOKS - 1) + [True]


def test_one_heartbeat_clears_what_was_missed():
    pulse = Pulse(LIMIT_S)
    pulse.look(7, lambda: STOPPED)
    looks(pulse, 7, STOPPED, LOOKS - 1)

    assert not pulse.look(8, lambda: STOPPED)
    assert not any(looks(pulse, 8, STOPPED, LOOKS - 1))


def test_one_that_does_not_count_is_not_judged():
    assert not any(looks(Pulse(LIMIT_S), 0, STOPPED, 3 * LOOKS))


def test_an_observer_that_was_away_starts_anew():
    pulse = Pulse(LIMIT_S)
    pulse.look(7, lambda: STOPPED)
    looks(pulse, 7, STOPPED, LOOKS - 1)

    assert not pulse.look(7, lambda: STOPPED, late=True)
    assert not any(looks(pulse, 7, STOPPED, LOOKS - 1))


@pytest.mark.parametrize("states", ["DS", "tt", ""], ids=["waits for a disk", "in a debugger", "is gone"])
def test_one_that_cannot_move_by_no_fault_of_its_own_is_not_hung(states):
    assert not any(looks(Pulse(LIMIT_S), 7, Activity(frozenset(states), 1.0), 3 * LOOKS))


def test_one_that_waits_for_a_processor_is_not_hung_and_one_that_uses_it_up_is():
    pulse = Pulse(30.0)
    for look in range(3 * LOOKS):
        assert not pulse.look(7, lambda look=look: Activity(frozenset("RS"), look * 0.05))
    spins = [pulse.look(7, lambda look=look: Activity(frozenset("RS"), 1.5 + look * 3.0)) for look in range(3 * LOOKS)]

    assert any(spins)


def child(code: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize("what", ["while True: pass", "import time; time.sleep(600)", "stop"])
def test_a_heart_kills_what_hangs(what):
    beats, poll = Beats(), select.poll()
    process = child("import time; time.sleep(600)" if what == "stop" else what)
    if what == "stop":
        process.send_signal(signal.SIGSTOP)
    handle = os.pidfd_open(process.pid)
    poll.register(handle, select.POLLIN)
    beats.beat(WORKER)
    heart = Heart(beats, SUPERVISOR, LIMIT_S)
    heart.watch(WORKER, process.pid)
    begun = time.monotonic()
    heard = heart.wait(poll, 20.0)
    heart.close()
    os.close(handle)
    process.communicate()

    assert heard == [handle]
    assert process.returncode == -signal.SIGKILL
    assert time.monotonic() - begun > LIMIT_S * 0.9
    assert beats.read(SUPERVISOR) == 0  # it is not judged any more


def test_a_heart_beats_while_it_waits_and_leaves_those_alone_that_beat():
    beats, poll = Beats(), select.poll()
    process = child("import time; time.sleep(600)")
    if (pid := os.fork()) == 0:
        while True:
            beats.beat(WORKER)
            time.sleep(LIMIT_S / LOOKS)
    heart = Heart(beats, SUPERVISOR, LIMIT_S)
    heart.watch(WORKER, process.pid)
    heard = heart.wait(poll, 3 * LIMIT_S)
    counted = beats.read(SUPERVISOR)
    heart.close()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    alive = process.poll() is None
    process.kill()
    process.communicate()

    assert heard == []
    assert counted > LOOKS
    assert alive


def test_what_a_process_does_is_read_from_the_kernel():
    process = child("while True: pass")
    until = time.monotonic() + 5
    while activity(process.pid).cpu_s == 0 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    stopped = activity(process.pid)
    process.kill()
    process.communicate()

    assert stopped.states == frozenset("T")
    assert stopped.cpu_s > 0
    assert activity(process.pid).states == frozenset()
