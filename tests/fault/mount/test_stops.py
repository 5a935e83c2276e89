"""SIGSTOP of keeper, supervisor and worker: who hangs is replaced as if it had been killed, and nobody else is."""

import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.mount import mount, open_mount
from envbuilder.mount.state import MountFolder, folders
from envbuilder.mount.unmount import unmount
from envbuilder.testing import waiting
from envbuilder.testing.nodes import BIG, process_of

pytestmark = pytest.mark.slow

#: Seconds that a process gets to answer: in production 30.
LIMIT_S = 0.5
PROCESSES = ("keeper", "supervisor", "worker")


until = partial(waiting.until, timeout_s=30.0)


def pids(folder: MountFolder) -> dict[str, int]:
    return {who: process_of(folder, who) for who in PROCESSES}


@pytest.fixture
def settings(node):
    return replace(node.settings, answer_limit_s=LIMIT_S, wait_limit_s=60.0)


@pytest.mark.parametrize(
    "victims", [*itertools.combinations(PROCESSES, 1), ("supervisor", "worker"), ("keeper", "worker")], ids="+".join
)
def test_readers_of_a_mount_only_wait_for_whoever_is_stopped(node, settings, victims):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, settings, directory)
    node.source.switch("slow", "0.1")
    reader = subprocess.Popen(["cat", directory / "data/big"], stdout=subprocess.PIPE)
    until(lambda: mounted.counters().fetched_chunks > 2)
    before = pids(mounted.folder)
    for who in victims:
        os.kill(before[who], signal.SIGSTOP)
    until(lambda: all(process_of(mounted.folder, who) not in (0, before[who]) for who in victims))
    node.source.switch("slow", "")
    out, _ = reader.communicate(timeout=30)
    after, log = pids(mounted.folder), mounted.folder.log.read_text()
    unmount(directory, node.settings.state_dir)

    assert out == BIG
    for who in victims:
        assert f"{who} {before[who]} has not answered" in log
    if "keeper" not in victims:  # else the supervisor took its place
        assert {who: pid for who, pid in after.items() if pid == before[who]}.keys() == {*PROCESSES} - {*victims}
    until(lambda: not node.leftovers())


def test_all_that_are_stopped_together_and_continued_live_on(node, settings):
    """A suspended machine, a paused container: what stood still as long as its observer is not hung."""
    with open_mount(node.image, node.source, settings) as mounted:
        before = pids(mounted.folder)
        for number in (signal.SIGSTOP, signal.SIGCONT) * 2:
            for pid in before.values():
                os.kill(pid, number)
            time.sleep(2 * LIMIT_S if number == signal.SIGSTOP else LIMIT_S / 3)
        time.sleep(1.5 * LIMIT_S)
        got, after = (mounted.directory / "data/big").read_bytes(), pids(mounted.folder)
        counters, log = mounted.counters(), mounted.folder.log.read_text()

    assert got == BIG
    assert after == before
    assert (counters.restarts, log) == (0, "")


def test_a_read_that_waits_when_all_are_stopped_for_longer_than_its_limit_goes_on_waiting(node, settings):
    """A batch system that suspends a job: the registry has not been away for so long."""
    with open_mount(node.image, node.source, replace(settings, wait_limit_s=4.0)) as mounted:
        (mounted.directory / "data/small").read_bytes()
        node.source.switch("away")
        reader = subprocess.Popen(["cat", mounted.directory / "data/big"], stdout=subprocess.PIPE)
        until(lambda: mounted.counters().outages > 1)
        for number, seconds in ((signal.SIGSTOP, 6.5), (signal.SIGCONT, 1.0)):
            for pid in pids(mounted.folder).values():
                os.kill(pid, number)
            time.sleep(seconds)
        node.source.switch("away", "")
        out, _ = reader.communicate(timeout=30)
        failed, log = mounted.counters().failed, mounted.folder.log
        log.unlink()

    assert out == BIG
    assert failed == 0


def test_one_that_is_stopped_again_and_again_for_less_than_the_limit_lives_on(node, settings):
    with open_mount(node.image, node.source, replace(settings, answer_limit_s=1.0)) as mounted:
        before = pids(mounted.folder)
        for number in (signal.SIGSTOP, signal.SIGCONT) * 4:
            os.kill(before["worker"], number)
            time.sleep(0.5 if number == signal.SIGSTOP else 0.2)
        got, after = (mounted.directory / "data/big").read_bytes(), pids(mounted.folder)

    assert got == BIG
    assert after == before


def test_a_worker_that_is_stopped_before_it_is_mounted_ends_the_start_with_the_reason(node, settings):
    code = f"""
import os, signal, sys
from pathlib import Path
from envbuilder.mount.state import folders
from envbuilder.testing.nodes import process_of
print(flush=True)
while not (found := [p for f in folders(Path({str(settings.state_dir)!r})) if (p := process_of(f, "worker"))]): pass
os.kill(found[0], signal.SIGSTOP)
"""
    stopper = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    stopper.stdout.readline()
    why_not, got = "", b""
    try:
        with open_mount(node.image, node.source, settings) as mounted:
            got = (mounted.directory / "data/big").read_bytes()
    except EnvbuilderError as error:
        why_not = str(error)
    stopper.communicate(timeout=20)

    assert got == BIG or "has not answered" in why_not
    until(lambda: not node.leftovers())


def test_a_full_pull_that_is_stopped_ends_with_the_reason(node, settings):
    node.source.switch("slow", "0.2")
    stopped = []

    def stop(_done: int, _total: int) -> None:
        for folder in () if stopped else folders(settings.state_dir):
            supervisor = process_of(folder, "supervisor")
            for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
                os.kill(int(child), signal.SIGSTOP)
                stopped.append(child)

    with (
        pytest.raises(EnvbuilderError, match="has not answered"),
        open_mount(node.image, node.source, settings, full=True, progress=stop),
    ):
        pass

    assert stopped
    until(lambda: not node.leftovers())
