"""``run`` by a user who is not root: a user name space of our own, file by file, and nothing left behind."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from envbuilder.testing.nodes import BIG, push_test_image

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")]

_NOBODY = 65534
#: What a host has and a build machine may lack: a /dev/fuse for all, and an interpreter that others may start.
_AS_NOBODY = """
mount --bind "$0/fuse" /dev/fuse
if [ -n "$1" ]; then
  mount --bind "$2" "$0/python" && mount -t tmpfs -o mode=755 none "$1" && mkdir -p "$2" && mount --bind "$0/python" "$2"
fi
shift 2
cd /
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"
"""


@pytest.fixture(scope="module")
def home(require_tool):
    for tool in ("unshare", "setpriv", "runc"):
        require_tool(tool)
    folder = Path(tempfile.mkdtemp(prefix="envbuilder-rootless-"))
    try:
        folder.chmod(0o755)
        for name in ("home", "python"):
            (folder / name).mkdir()
        os.mknod(folder / "fuse", stat.S_IFCHR | 0o666, os.makedev(10, 229))
        (folder / "fuse").chmod(0o666)
        push_test_image(folder / "home/layout")
        for path in [folder / "home", *(folder / "home").rglob("*")]:
            os.chown(path, _NOBODY, _NOBODY)
        yield folder
    finally:
        shutil.rmtree(folder)


def closed_parent(path):
    """The first folder above ``path`` that only its owner may enter, or ""."""
    closed = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
    return str(closed[0]) if closed else ""


def run(home, *words, **extra):
    prefix = Path(sys.base_prefix).resolve()
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("ENVBUILDER_", "XDG_"))}
    environ |= {"HOME": str(home / "home"), "XDG_RUNTIME_DIR": str(home / "home"), **extra}
    apart = ["unshare", "-m", "sh", "-c", _AS_NOBODY, home, closed_parent(prefix), prefix]
    command = [sys.executable, "-m", "envbuilder", "run", f"oci:{home}/home/layout:test", *words]
    return subprocess.run([*apart, *command], env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_a_command_runs_lazily_without_root(home):
    report = home / "home/report.json"
    done = run(home, "--report", report, "--", "sh", "-c", "id -u; cksum /data/big; mkdir /data/new && ls /data")

    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "0"
    assert str(len(BIG)) in done.stdout
    assert done.stdout.split()[-5:] == ["big", "link", "new", "second", "small"]
    assert '"how": "fuse lazy"' in report.read_text()
    assert list((home / "home/envbuilder/mounts").iterdir()) == []


def test_its_exit_status_is_the_command_s(home):
    assert run(home, "--", "sh", "-c", "exit 7").returncode == 7


def test_another_user_of_the_image_is_refused_with_the_reason(home):
    done = run(home, "--user", "1000", "--", "id")

    assert done.returncode == 5
    assert "without root only 0:0 is there" in done.stderr


def test_without_fuse_the_image_is_unpacked(home):
    (home / "fuse").chmod(0o600)
    try:
        done = run(home, "--", "cat", "/data/small")
    finally:
        (home / "fuse").chmod(0o666)

    assert (done.returncode, done.stdout) == (0, "small\n"), done.stderr
    assert "unpacking the whole image" in done.stderr
