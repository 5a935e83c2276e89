"""Programs of a base run apart: nobody's user, no network, nothing to write to, and an end when their time is over."""

import json
import os
import platform
import shutil
import time

import pytest

from envbuilder.mount.container.confined import Confined
from envbuilder.mount.container.program import Program
from envbuilder.mount.container.runtime import find_runtime
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramFailed, run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")]
HERE = Platform.parse(platform.machine())


@pytest.fixture
def confined(tmp_path, require_tool):
    """Over some of this host's own programs, which are as good as any."""
    require_tool("runc")
    root = tmp_path / "root"
    for name in ("proc", "dev", "sys"):
        (root / name).mkdir(parents=True)
    programs = [require_tool(name) for name in ("sh", "cat", "id", "ls", "grep", "sleep")]
    needed = {word for line in run(["ldd", *programs]).stdout.decode().split("\n") for word in line.split()}
    for file in (*programs, *(word for word in needed if word.startswith("/") and not word.endswith(":"))):
        (root / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / file[1:])
    made = Confined(find_runtime(tmp_path / "state"), root, HERE)
    return lambda script, **options: made([programs[0], "-c", script], **options)


def test_it_answers_and_can_do_nothing_else(confined):
    said = confined("cat; id -u; cat /proc/self/status | grep -i capeff; echo x > /x; ls /sys/class/net", stdin=b"hi\n")
    lines = said.stdout.decode().split("\n")

    assert lines[:2] == ["hi", "65534"]
    assert lines[2].split()[1] == "0" * 16
    assert "lo" in lines[3:]
    assert not any(name.startswith("e") for name in lines[3:])
    assert b"Read-only file system" in said.stderr


def test_what_does_not_end_is_ended(confined):
    begun = time.monotonic()
    with pytest.raises(ProgramFailed):
        confined("sleep 97531", timeout_s=2.0)

    assert time.monotonic() - begun < 25
    assert not [line for line in run(["ps", "-eo", "args"]).stdout.decode().split("\n") if line.endswith("sleep 97531")]


def test_the_runtime_is_told_of_nobody_and_no_right(tmp_path):
    seen = {}

    class Watched(Program):
        def config(self, value):
            seen.update(value)
            return value

    Confined(Watched("/bin/true"), tmp_path, HERE)(["/x"], env={"A": "1"})

    assert seen["process"]["user"]["uid"] == seen["process"]["user"]["gid"] == 65534
    assert seen["process"]["capabilities"] == {}
    assert seen["process"]["noNewPrivileges"]
    assert seen["root"]["readonly"]
    assert {"network", "pid", "mount", "ipc", "uts"} <= {each["type"] for each in seen["linux"]["namespaces"]}
    assert json.dumps(seen["process"]["args"]) == '["/x"]'
