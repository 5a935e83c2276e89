"""Starts that were decided before: they are what an ordinary start is, whoever is killed and whatever has changed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.mount.state import MountStatus, reap, statuses
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.nodes import Node, kill_at_once, make_node
from envbuilder.testing.servers import docker_registry
from envbuilder.testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="EROFS mounts are for root")]

#: An option that no decision knows: the start goes the ordinary way.
ORDINARY = "--quiet"


@dataclass(frozen=True)
class Warm:
    """A node on which an image is whole and a start of it decided; its registry is gone."""

    node: Node
    reference: str

    def start(
        self, *words: str, options: tuple[str, ...] = (), verb: str = "run", **pipes
    ) -> "subprocess.Popen[bytes]":
        environ = {
            **{name: text for name, text in os.environ.items() if not name.startswith("ENVBUILDER_")},
            "HOME": str(self.node.folder),
            "ENVBUILDER_STATE": str(self.node.settings.state_dir),
            "ENVBUILDER_CHUNKS": str(self.node.settings.cache_dir),
            "ENVBUILDER_TEST_NODE": str(self.node.folder),
            "ENVBUILDER_MOUNT_WAIT_LIMIT_S": "1",
        }
        words = (*options, self.reference, "--", *words) if verb == "run" else words
        argv = [sys.executable, "-m", "envbuilder", verb, *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **pipes}
        return subprocess.Popen(argv, env=environ, cwd=self.node.folder, **streams)

    def run(self, *words: str, options: tuple[str, ...] = (), verb: str = "run") -> tuple[int, str, str]:
        process = self.start(*words, options=options, verb=verb)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.decode(), err.decode()

    def waiting(self, *words: str) -> "tuple[subprocess.Popen[bytes], MountStatus]":
        """A job that said that it is there, and then does ``words``; its mount."""
        process = self.start("sh", "-c", f"echo ready; read go; {' '.join(words)}", stdin=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n", process.stderr.read()
        [status] = statuses(self.node.settings.state_dir)
        assert status.record.keeper == process.pid, "not a warm start"
        return process, status


@pytest.fixture(scope="module")
def decided(tmp_path_factory, layout, require_tool) -> Warm:
    require_tool("docker-registry")
    node = make_node(layout, tmp_path_factory.mktemp("warm"))
    with docker_registry(node.folder / "registry") as server:
        reference = RegistryReference(server.host, "some/image", tag="1")
        with RegistryClient() as client:
            source = LayoutTarget(layout)
            copy(source, source.lookup("test"), RegistryTarget(reference, client, writable=True), tag="1")
        warm = Warm(node, str(reference.at(node.image.root.digest)))
        for options in (("--full",), ()):
            assert warm.run("cat", "/data/small", options=options) == (0, "small\n", "")
    return warm


@pytest.fixture
def warm(decided) -> Iterator[Warm]:
    yield decided
    until(lambda: not decided.node.leftovers())


def test_a_warm_start_is_what_an_ordinary_start_is(warm):
    look = "id; pwd; env; cat /proc/self/limits /proc/1/cgroup; exit 7"
    rights = "while read -r name value; do case $name in Cap*) echo $name $value;; esac; done < /proc/self/status"
    mounts = "while read -r _ _ _ root at flags _; do echo $root $at $flags; done < /proc/self/mountinfo"
    words, options = ("sh", "-c", f"{mounts}; {rights}; {look}"), ("--env", "MINE=a=b", "--workdir", "data")
    warm.run("id", options=options)  # decided now
    process, status = warm.waiting("cat /proc/self/limits > /dev/null")
    process.communicate(b"\n")

    first, second = warm.run(*words, options=options), warm.run(*words, options=(*options, ORDINARY))

    assert status.record.how == "erofs direct"
    assert first[0] == 7
    assert "MINE=a=b" in first[1]
    assert first == second


def test_devices_of_an_image_are_none_and_none_can_be_made(warm):
    for options in ((), (ORDINARY,)):
        _, out, _ = warm.run("sh", "-c", "cat /proc/self/mountinfo /proc/self/status", options=options)
        [root] = (line.split() for line in out.splitlines() if " / / " in line)
        [bounding] = (int(line.split()[1], 16) for line in out.splitlines() if line.startswith("CapBnd"))

        assert "nodev" in root[5].split(",")
        assert not bounding >> 27 & 1  # CAP_MKNOD (capabilities(7))


def test_a_missing_command_is_told_in_words(warm):
    first, second = warm.run("no-such-command"), warm.run("no-such-command", options=(ORDINARY,))

    assert first[0] == second[0] == 127
    assert "'no-such-command' is not there" in first[2]


def test_a_secret_of_one_start_is_not_kept(warm):
    assert warm.run("sh", "-c", "echo $TOKEN", options=("--env", "TOKEN=s3cret")) == (0, "s3cret\n", "")

    kept = [path.read_bytes() for path in warm.node.settings.state_dir.rglob("*") if path.is_file()]

    assert any(b"config" in data for data in kept)
    assert not any(b"s3cret" in data for data in kept)


def test_a_signal_ends_it_and_nothing_stays(warm):
    process, _ = warm.waiting("sleep 60")
    process.stdin.write(b"\n")
    process.stdin.flush()
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)

    assert process.returncode == 128 + signal.SIGTERM
    assert not warm.node.leftovers()


def test_its_job_is_seen_and_counted(warm):
    process, status = warm.waiting("true")
    [shown] = json.loads(warm.run("--json", verb="ps")[1])
    before = json.loads(warm.run("--json", verb="status")[1])
    process.communicate(b"\n")
    after = json.loads(warm.run("--json", verb="status")[1])

    assert (shown["id"], shown["alive"], shown["worker"]) == (status.record.id, True, 0)
    assert [mount["state"] for mount in before["mounts"]] == ["idle"]
    assert before["store"]["layers_in_use"] == len(status.record.layers)
    assert before["totals"] == after["totals"]  # one that is, or one that was


def test_its_layers_are_not_evicted(warm):
    process, status = warm.waiting("cksum < /data/big")
    freed = warm.run("gc", "--down-to", "1kB", "--json", verb="chunks")
    out, _ = process.communicate(b"\n", timeout=20)

    assert freed[0] == 0
    assert process.returncode == 0
    assert out.split()[1] == str(5 << 20).encode()
    blobs = warm.node.settings.cache_dir / "chunks/blobs"
    assert {path.name for path in blobs.iterdir()} >= set(status.record.layers)


def test_a_killed_run_takes_its_container_along(warm):
    process, _ = warm.waiting("sleep 60")
    process.kill()
    process.communicate(timeout=20)

    until(lambda: not warm.node.leftovers())


def test_a_killed_guard_is_replaced_and_the_job_goes_on(warm):
    process, status = warm.waiting("cksum < /data/big")
    for _ in range(3):
        [before] = statuses(warm.node.settings.state_dir)
        os.kill(before.record.supervisor, signal.SIGKILL)
        until(lambda before=before: _guard(warm) not in (0, before.record.supervisor))
    process.kill()
    process.communicate(timeout=20)

    assert status.alive
    until(lambda: not warm.node.leftovers())


def _guard(warm: Warm) -> int:
    return next((each.record.supervisor for each in statuses(warm.node.settings.state_dir)), 0)


def test_what_both_leave_is_shown_and_cleared_away(warm):
    process, status = warm.waiting("sleep 60")
    kill_at_once([process.pid, status.record.supervisor])
    process.wait()
    until(lambda: not statuses(warm.node.settings.state_dir)[0].alive)
    [left] = statuses(warm.node.settings.state_dir)
    reap(warm.node.settings.state_dir)

    assert (left.alive, left.state) == (False, "unwatched")
    until(lambda: not warm.node.leftovers())
    process.communicate()


def test_killed_at_any_moment_it_leaves_nothing(warm):
    for delay_ms in range(20, 140, 8):
        process = warm.start("sleep", "60")
        time.sleep(delay_ms / 1000)
        process.kill()
        process.communicate(timeout=20)
    # Killed between making its folder and having a guard, it leaves what the next command clears away.
    time.sleep(0.2)
    reap(warm.node.settings.state_dir)

    until(lambda: not warm.node.leftovers())


def test_starts_leave_no_mount_or_process(warm):
    def once() -> None:
        assert warm.run("id")[0] == 0

    for _ in range(10):
        once()

    assert not warm.node.leftovers()


@pytest.mark.parametrize(
    "what", ["a layer is gone", "metadata are other bytes", "the decision is cut", "others may write it"]
)
def test_a_start_that_is_not_as_it_was_decided_goes_the_ordinary_way(warm, tmp_path, what):
    """The registry is gone: the ordinary way says so, or needs none."""
    starts = warm.node.settings.state_dir / "starts"
    value = json.loads(max(starts.iterdir(), key=lambda file: file.stat().st_size).read_bytes())["whole"]
    blob = warm.node.settings.cache_dir / "chunks/blobs" / value["devices"][0][0]
    if what == "a layer is gone":
        blob.rename(tmp_path / "aside")
        try:
            assert warm.run("cat", "/data/big", options=("--env", "A=1"))[0] != 0
        finally:
            shutil.rmtree(blob, ignore_errors=True)
            (tmp_path / "aside").rename(blob)
    elif what == "metadata are other bytes":
        file = Path(value["metadata"])
        before = file.read_bytes()
        file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        try:
            assert warm.run("id")[0] != 0
        finally:
            file.write_bytes(before)
    elif what == "the decision is cut":
        for kept in starts.iterdir():
            kept.write_bytes(kept.read_bytes()[:-10])
    else:
        for kept in starts.iterdir():
            kept.chmod(0o666)
    assert warm.run("cat", "/data/small")[:2] == (0, "small\n")
    process, _ = warm.waiting("true")
    process.communicate(b"\n")


def test_changed_settings_are_heard(warm):
    config = warm.node.folder / ".config/envbuilder/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('mount.mode = "nonsense"\n')
    try:
        status, _, err = warm.run("id")
    finally:
        shutil.rmtree(config.parents[1])

    assert status == 2
    assert "nonsense" in err
