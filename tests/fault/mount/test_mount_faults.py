"""What a mount survives, and what it leaves behind when it cannot: nothing. Every kill is a real one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.host.processes import is_running, start_time
from envbuilder.mount.mount import Mounted, mount, open_mount
from envbuilder.mount.state import reap, statuses
from envbuilder.testing.nodes import BIG, kill_at_once
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow


def worker_of(mounted: Mounted) -> int:
    return int(mounted.folder.worker.read_text().split()[0])


class Reader(threading.Thread):
    """Reads a file of a mount in another process, as a job would, and keeps what came of it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.result = b""
        self.status = -1
        self.start()

    def run(self) -> None:
        done = subprocess.run(["cat", self.file], capture_output=True, check=False)
        self.result, self.status = done.stdout, done.returncode


def test_a_read_waits_for_a_registry_that_is_away_and_then_succeeds(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/small").read_bytes()
        node.source.switch("away")
        reader = Reader(mounted.directory / "data/big")
        until(lambda: mounted.counters().outages > 1)
        waiting = reader.is_alive()
        node.source.switch("away", "")
        reader.join()

    assert waiting
    assert reader.result == BIG


def test_a_read_fails_after_the_limit_and_the_node_is_unharmed(node):
    with open_mount(node.image, node.source, replace(node.settings, wait_limit_s=0.5)) as mounted:
        node.source.switch("away")
        reader = Reader(mounted.directory / "data/big")
        reader.join()
        node.source.switch("away", "")

        assert (reader.result, reader.status) == (b"", 1)
        assert (mounted.directory / "data/big").read_bytes() == BIG


def test_an_altered_chunk_is_an_error_and_never_data(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/small").read_bytes()
        with open(mounted.directory / "data/big", "rb") as file:
            file.read(10)  # the index of this layer is here
        node.source.switch("altered")
        with open(mounted.directory / "data/big", "rb", buffering=0) as file:
            file.seek(4 << 20)
            with pytest.raises(OSError, match="Input/output error"):
                file.read(100)
        node.source.switch("altered", "")
        with open(mounted.directory / "data/big", "rb", buffering=0) as file:
            file.seek(4 << 20)
            again = file.read(100)
        log = mounted.folder.log.read_text()

    assert again == BIG[4 << 20 :][:100]
    assert "want sha256:" in log
    assert str(node.image.root.digest) in log
    mounted.folder.log.unlink()


def test_a_source_that_lost_the_blob_is_an_error_at_last(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        node.source.switch("gone")
        with pytest.raises(OSError, match="Input/output error"):
            (mounted.directory / "data/big").read_bytes()


def test_an_unreachable_source_stops_a_full_start_and_leaves_nothing(node):
    node.source.switch("away")
    with (
        pytest.raises(EnvbuilderError, match=r"could be fetched|switched off"),
        open_mount(node.image, node.source, replace(node.settings, wait_limit_s=0.5), full=True),
    ):
        pass


@pytest.mark.parametrize("mode", ["erofs", "fuse"])
def test_readers_do_not_notice_that_the_worker_is_killed(node, mode):
    with open_mount(node.image, node.source, replace(node.settings, mode=mode)) as mounted:
        node.source.switch("slow", "0.05")
        readers = [Reader(mounted.directory / "data" / name) for name in ("big", "second")]
        for restarts in (1, 2, 3):
            until(lambda restarts=restarts: mounted.counters().fetched_chunks > 4 * restarts)
            killed = worker_of(mounted)
            os.kill(killed, signal.SIGKILL)
            # The next one is to be killed, not this one's remains.
            until(lambda killed=killed: worker_of(mounted) != killed)
            assert mounted.counters().restarts == restarts
        node.source.switch("slow", "")
        for reader in readers:
            reader.join()

    assert [reader.status for reader in readers] == [0, 0]
    assert readers[0].result == BIG
    assert readers[1].result == BIG[::-1]


def test_a_worker_that_dies_again_and_again_is_given_up_and_reads_fail(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        node.source.switch("away")
        reader = Reader(mounted.directory / "data/big")
        for _ in range(9):
            pid = worker_of(mounted)
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: worker_of(mounted) != pid or not reader.is_alive())
        reader.join(10)

        assert reader.status == 1


def test_the_mount_goes_when_its_supervisor_is_told_to_end(node):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    os.kill(mounted.supervisor, signal.SIGTERM)

    until(lambda: not node.leftovers())


def kept_by_nobody(node, *, writable=False):
    """A mount in ``node.folder / "here"`` whose keeper and supervisor were killed."""
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory, writable=writable)
    kill_at_once([mounted.keeper, mounted.supervisor])
    until(lambda: not mounted.folder.is_alive())
    return directory


def test_a_mount_that_nobody_keeps_is_served_and_goes_with_the_next_command(node):
    directory = kept_by_nobody(node, writable=True)
    still_served = (directory / "data/big").read_bytes()
    [status] = statuses(node.settings.state_dir)
    reaped = reap(node.settings.state_dir)

    assert still_served == BIG
    assert not status.alive
    assert [record.directory for record in reaped] == [str(directory)]
    assert node.leftovers() == []


def test_a_mount_in_use_that_nobody_keeps_is_left_to_its_users(node):
    directory = kept_by_nobody(node)
    with open(directory / "data/second", "rb") as file:
        reaped = reap(node.settings.state_dir)
        data = file.read()

    assert reaped == ()
    assert data == BIG[::-1]
    assert len(reap(node.settings.state_dir)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_killed(node, start, number):
    process = start("sh", "-c", "trap '' TERM; echo ready; sleep 600")
    process.stdout.readline()
    if number == signal.SIGTERM:
        os.kill(process.pid, signal.SIGSTOP)  # it can do nothing itself
    process.send_signal(number)
    process.send_signal(signal.SIGKILL)
    process.wait(20)

    until(lambda: not node.leftovers())


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8])
def test_a_run_killed_at_any_moment_leaves_nothing(node, start, delay_s):
    process = start("sh", "-c", "echo ready; sleep 600")
    time.sleep(delay_s)
    process.kill()
    process.wait(20)

    until(lambda: not node.leftovers())


def test_a_run_goes_on_when_its_worker_is_killed(node, start):
    process = start("sh", "-c", "echo ready; sleep 0.5; cksum < /data/big; cksum < /data/second")
    process.stdout.readline()
    [status] = statuses(node.settings.state_dir)
    worker = int((node.settings.state_dir / "mounts" / status.record.id / "worker").read_text().split()[0])
    os.kill(worker, signal.SIGKILL)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(out.splitlines()) == 2


def test_a_run_killed_together_with_its_supervisor_leaves_nothing(node, start):
    process = start("sh", "-c", "echo ready; sleep 600")
    process.stdout.readline()
    [status] = statuses(node.settings.state_dir)
    kill_at_once([process.pid, status.record.supervisor])
    process.wait(20)

    until(lambda: not node.leftovers())


def test_a_run_killed_together_with_keeper_and_supervisor_goes_with_the_next_command(node, start):
    process = start("sh", "-c", "echo ready; sleep 600")
    process.stdout.readline()
    [status] = statuses(node.settings.state_dir)
    kill_at_once([process.pid, status.record.keeper, status.record.supervisor])
    process.wait(20)
    # Killed is not yet gone: while one of them still holds the lock, the mount is not the next command's to clear away.
    killed = (status.record.keeper, status.record.supervisor)
    until(lambda: not any(is_running((pid, start_time(pid))) for pid in killed))
    left = node.leftovers()
    reap(node.settings.state_dir)

    assert left
    until(lambda: not node.leftovers())


def test_an_interrupted_mount_in_a_context_is_cleared(node):
    with pytest.raises(KeyboardInterrupt), open_mount(node.image, node.source, node.settings, writable=True):
        raise KeyboardInterrupt


def test_a_read_only_state_directory_is_refused_in_words(node, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with (
        pytest.raises(EnvbuilderError, match="state directory"),
        open_mount(node.image, node.source, replace(node.settings, state_dir=blocked / "state")),
    ):
        pass


def test_a_full_disk_still_serves_what_is_read(node, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", small], check=True)
    try:
        with open_mount(node.image, node.source, replace(node.settings, cache_dir=small / "cache")) as mounted:
            assert (mounted.directory / "data/big").read_bytes() == BIG
            assert (mounted.directory / "data/second").read_bytes() == BIG[::-1]
    finally:
        subprocess.run(["umount", small], check=True)


def test_many_mounts_leak_nothing():
    """The quick form of ``make soak``: mounts, descriptors, processes, files, memory, workers killed in between."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    soak = Path(__file__).resolve().parents[3] / "tools/soak.py"
    done = subprocess.run(
        [sys.executable, soak, "--cycles", "20", "--warm", "3"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["worker_kib"] > 0
