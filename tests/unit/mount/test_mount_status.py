"""What is said of a mount: who keeps it, who answers its reads."""

import os
import subprocess
from dataclasses import replace

import pytest

from envbuilder.mount.counters import Snapshot
from envbuilder.mount.folder import MountFolder
from envbuilder.mount.host.processes import is_running
from envbuilder.mount.state import MountStatus, Record, start_time, statuses

RECORD = Record(
    id="one", directory="/x", image="i", how="erofs lazy", writable=False, private=False, detached=False, keeper=1,
    supervisor=1, points=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("how", "alive", "worker", "state"),
    [
        ("erofs lazy", True, 0, "kept"), ("erofs lazy", False, 7, "unwatched"), ("erofs lazy", False, 0, "dead"),
        ("loop direct", False, 0, "unwatched"), ("unpacked", False, 0, "unwatched"), ("", False, 0, "dead"),
    ],
)  # fmt: skip
def test_a_mount_that_nobody_keeps_is_dead_only_if_its_reads_fail(how, alive, worker, state):
    assert MountStatus(replace(RECORD, how=how), Snapshot(), alive, worker).state == state


def test_the_worker_is_named_while_it_runs(tmp_path):
    folder = MountFolder(tmp_path, "one")
    os.close(folder.create())
    folder.write(RECORD)
    folder.write_worker(os.getpid())
    [here] = statuses(tmp_path)
    folder.worker.write_text(f"{os.getpid()} {start_time(os.getpid()) + 1}")
    [another] = statuses(tmp_path)

    assert (here.worker, here.to_json()["worker"]) == (os.getpid(), os.getpid())
    assert another.worker == 0


def test_a_process_that_ended_and_was_not_collected_runs_no_more():
    process = subprocess.Popen(["/bin/sleep", "60"])
    named = (process.pid, start_time(process.pid))
    before = is_running(named)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    after = is_running(named)
    process.wait()

    assert (before, after) == (True, False)
