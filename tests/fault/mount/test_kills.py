"""kill -9 of keeper, supervisor and worker, alone and together, at every stage of a mount and of a job."""

import itertools
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.host import kernel
from envbuilder.mount.mount import mount, open_mount
from envbuilder.mount.state import MountFolder, folders, reap, source_name, statuses
from envbuilder.mount.unmount import unmount
from envbuilder.testing.nodes import BIG, kill_at_once, process_of
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow

PROCESSES = ("keeper", "supervisor", "worker")
#: Any of them, and any two at once.
VICTIMS = [*itertools.combinations(PROCESSES, 1), *itertools.combinations(PROCESSES, 2)]
#: Without these two nobody is there to start others; the worker goes on.
UNKEPT = ("keeper", "supervisor")


def killed(folder: MountFolder, victims) -> None:
    """Kill them, and wait until others are in their place."""
    before = {who: process_of(folder, who) for who in victims}
    kill_at_once(before.values())
    if victims == UNKEPT:
        return
    until(lambda: all(process_of(folder, who) not in (0, pid) for who, pid in before.items()))


def start_cat(directory) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["cat", directory / "data/big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("mode", "victims"),
    [*(("erofs", victims) for victims in VICTIMS), ("fuse", ("supervisor", "worker"))],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_readers_of_a_mount_only_wait_for_whoever_is_killed(node, victims, mode):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, replace(node.settings, mode=mode), directory)
    node.source.switch("slow", "0.1")
    reader = start_cat(directory)
    until(lambda: mounted.counters().fetched_chunks > 2)
    killed(mounted.folder, victims)
    if victims != UNKEPT:
        killed(mounted.folder, victims)
    node.source.switch("slow", "")
    out, _ = reader.communicate(timeout=30)
    idle = subprocess.run(["cat", directory / "data/second"], stdout=subprocess.PIPE, check=True).stdout
    unmount(directory, node.settings.state_dir)

    assert out == BIG
    assert idle == BIG[::-1]
    until(lambda: not node.leftovers())


def test_all_three_killed_at_once_are_errors_and_then_nothing(node):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    kill_at_once(process_of(mounted.folder, who) for who in PROCESSES)
    until(lambda: not mounted.folder.is_alive())
    until(lambda: [status.state for status in statuses(node.settings.state_dir)] == ["dead"])
    with pytest.raises(OSError, match=r"Input/output error|not connected"):
        (directory / "data/big").read_bytes()
    reap(node.settings.state_dir)

    until(lambda: not node.leftovers())


@pytest.mark.parametrize(
    "victims", [("supervisor",), UNKEPT, ("supervisor", "worker"), ("keeper", "worker")], ids="+".join
)
def test_a_job_goes_on_whoever_is_killed(node, start, victims):
    process = start("sh", "-c", "echo ready; read go; cksum < /data/big", stdin=subprocess.PIPE)
    process.stdout.readline()
    [status] = statuses(node.settings.state_dir)
    killed(MountFolder(node.settings.state_dir, status.record.id), victims)
    if victims == UNKEPT:
        until(lambda: not statuses(node.settings.state_dir)[0].alive)
        [unkept] = statuses(node.settings.state_dir)
        assert (unkept.state, unkept.worker) == ("unwatched", status.worker)
    out, err = process.communicate(b"go\n", timeout=60)

    assert status.worker > 0
    assert process.returncode == 0, err
    assert out.split()[1] == str(len(BIG)).encode()
    until(lambda: not node.leftovers())


def test_a_job_whose_processes_are_all_killed_fails_and_leaves_nothing(node, start):
    process = start("sh", "-c", "echo ready; read go; cksum < /data/big", stdin=subprocess.PIPE)
    process.stdout.readline()
    [status] = statuses(node.settings.state_dir)
    folder = MountFolder(node.settings.state_dir, status.record.id)
    kill_at_once(process_of(folder, who) for who in PROCESSES)
    _, err = process.communicate(b"go\n", timeout=60)

    assert process.returncode != 0
    # Of its own pages that it had not read yet a shell hears by SIGBUS, and says nothing.
    assert b"rror" in err or process.returncode == 128 + signal.SIGBUS, (process.returncode, err)
    until(lambda: not node.leftovers())


def test_a_supervisor_that_dies_again_and_again_is_given_up_and_reads_fail(node):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    node.source.switch("away")
    reader = start_cat(directory)
    for _ in range(9):
        pid = mounted.supervisor
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: mounted.supervisor != pid or not mounted.folder.is_alive())
    reader.communicate(timeout=20)
    node.source.switch("away", "")
    until(lambda: not mounted.folder.is_alive())
    reap(node.settings.state_dir)

    assert reader.returncode == 1
    until(lambda: not node.leftovers())


@pytest.mark.parametrize("who", PROCESSES)
@pytest.mark.parametrize("delay_s", [0.0, 0.015])
def test_whoever_is_killed_before_it_is_mounted_the_start_works_or_says_why_not(node, who, delay_s):
    """The killer strikes ``delay_s`` after it finds the process: from the first moment on to about when it is ready."""
    code = (
        "import os, signal, sys, time\n"
        "from envbuilder.mount.state import folders\n"
        "from envbuilder.testing.nodes import process_of\n"
        "from pathlib import Path\n"
        "print(flush=True)\n"
        "while not (found := [p for f in folders(Path(sys.argv[1])) if (p := process_of(f, sys.argv[2]))]): pass\n"
        "time.sleep(float(sys.argv[3]))\n"
        "os.kill(found[0], signal.SIGKILL)\n"
    )
    killer = subprocess.Popen([sys.executable, "-c", code, node.settings.state_dir, who, str(delay_s)], stdout=-1)
    killer.stdout.readline()
    why_not, got = "", b""
    try:
        with open_mount(node.image, node.source, node.settings) as mounted:
            got = (mounted.directory / "data/big").read_bytes()
    except EnvbuilderError as error:
        why_not = str(error)
    killer.communicate(timeout=20)

    assert got == BIG or "killed" in why_not or "ended" in why_not
    assert killer.returncode == 0
    until(lambda: not node.leftovers())


@pytest.mark.parametrize("victims", [("supervisor",), ("worker",), ("supervisor", "worker")], ids="+".join)
def test_whoever_is_killed_while_it_is_unmounted_nothing_is_left(node, victims):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory, writable=True)
    for number in range(200):  # what the supervisor has to remove
        (directory / f"new{number}").write_text("x")
    pids = [process_of(mounted.folder, who) for who in victims]
    subprocess.run(["umount", directory], check=True)
    kill_at_once(pids)

    until(lambda: not node.leftovers())


def test_a_full_pull_whose_supervisor_is_killed_ends_with_the_reason(node):
    node.source.switch("slow", "0.2")
    started = subprocess.Popen(["sleep", "600"])  # in place of nothing: see that we kill nobody else

    def kill_soon(_done: int, _total: int) -> None:
        for folder in folders(node.settings.state_dir):
            if pid := process_of(folder, "supervisor"):
                os.kill(pid, signal.SIGKILL)

    with (
        pytest.raises(EnvbuilderError, match="killed"),
        open_mount(node.image, node.source, node.settings, full=True, progress=kill_soon),
    ):
        pass
    started.kill()
    started.wait()

    until(lambda: not node.leftovers())


def test_an_aborted_connection_is_an_error_and_the_mount_can_go(node):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    (fuse,) = (point for point in kernel.mount_points() if point.source == source_name(mounted.id))
    kernel.abort_fuse(fuse.directory)
    with pytest.raises(OSError, match=r"Input/output error|not connected"):
        (directory / "data/big").read_bytes()
    unmount(directory, node.settings.state_dir)

    until(lambda: not node.leftovers())
