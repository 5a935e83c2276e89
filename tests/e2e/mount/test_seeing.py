"""What a person sees of a start: while it runs, from another terminal, and afterwards in its report."""

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]


@pytest.fixture
def envbuilder(node):
    """The command on the same node."""

    def call(*words, status=0):
        environ = {
            **os.environ,
            "ENVBUILDER_STATE": str(node.settings.state_dir),
            "ENVBUILDER_CHUNKS": str(node.settings.cache_dir),
        }
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", *words],
            env=environ, cwd=node.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return done.stdout

    return call


def until(found, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(0.05)
    pytest.fail("it did not come to that")


def test_status_names_the_file_that_a_job_waits_for(start, node, envbuilder):
    # The programs are here before the source goes: it is their file that shall be waited for.
    script = "cat /data/small | cksum; read line; cat /data/second | cksum"
    process = start("sh", "-c", script, stdin=subprocess.PIPE)
    assert process.stdout.readline()
    node.source.switch("away")
    process.stdin.write(b"go\n")
    process.stdin.flush()

    def waiting():
        [mount] = json.loads(envbuilder("status", "--json"))["mounts"]
        return mount if mount["waiting"] and mount["log"] else None

    mount = until(waiting)
    shown = envbuilder("status", mount["id"][:4])
    node.source.switch("away", "")
    process.communicate(timeout=60)

    assert mount["waiting"][0]["path"] == "/data/second"
    assert mount["state"] == "fetching"
    assert "for /data/second" in shown
    assert f"log: {mount['log']}" in shown
    assert process.returncode == 0


def test_what_mounts_did_outlives_them(start, node, envbuilder):
    start("cat", "/data/small").communicate(timeout=60)
    start("cat", "/data/small").communicate(timeout=60)

    value = json.loads(envbuilder("status", "--json"))
    metrics = envbuilder("ps", "--prometheus")

    assert value["mounts"] == []
    assert value["totals"]["mounts"] == 2
    assert value["totals"]["counters"]["fetched_bytes"] > 4000
    assert value["store"]["layers_in_use"] == 0
    assert f"envbuilder_node_fetched_bytes_total {value['totals']['counters']['fetched_bytes']}\n" in metrics


def test_following_a_mount_ends_with_it(start, node, envbuilder):
    process = start("sleep", "2")
    [folder] = until(lambda: list((node.settings.state_dir / "mounts").glob("*/container")))

    lines = envbuilder("status", folder.parent.name, "--follow", "--json").splitlines()
    process.communicate(timeout=60)

    assert 1 <= len(lines) <= 4
    assert all(json.loads(line)[0]["id"] == folder.parent.name for line in lines)
    assert "nothing of that name" not in envbuilder("status")


def test_a_report_names_files_and_a_picture_shows_them(layout, node, envbuilder):
    words = ["run", "--report", "r.json", "--report", "r.svg", f"oci:{layout}:test"]
    out = envbuilder(*words, "--", "sh", "-c", "cat /data/second /data/small | cksum")

    report = json.loads((node.folder / "r.json").read_text())
    root = ET.parse(node.folder / "r.svg").getroot()

    assert out
    assert "/data/second" in {each["path"] for each in report["waits_by_file"]}
    assert report["timeline"][-1][1] == report["fetched_bytes"]["in_all"] > 0
    assert 0 < report["blocked_s"] <= report["seconds"]["first_output"]
    assert report["image_bytes"] > 10 << 20
    assert any("/data/second" in (each.text or "") for each in root.iter())


def test_a_killed_worker_s_waits_do_not_wait_for_ever(start, node, envbuilder):
    process = start("sh", "-c", "read line; cat /data/big | cksum", stdin=subprocess.PIPE)
    [folder] = until(lambda: list((node.settings.state_dir / "mounts").glob("*/container")))
    node.source.switch("away")
    process.stdin.write(b"go\n")
    process.stdin.flush()
    until(lambda: json.loads(envbuilder("status", "--json"))["mounts"][0]["waiting"])
    pid, _ = (folder.parent / "worker").read_text().split()
    os.kill(int(pid), 9)
    until(lambda: (folder.parent / "worker").read_text().split()[0] != pid and Path(f"/proc/{pid}").exists() is False)
    node.source.switch("away", "")
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert json.loads(envbuilder("status", "--json"))["totals"]["counters"]["restarts"] >= 1
