"""Where users really stand: odd names, odd masks, no home, no working directory. The command as a subprocess."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from envbuilder.testing.nodes import push_test_image

pytestmark = pytest.mark.slow
ODD = [
    "with space",
    "ünïcode",
    "co:lon",
    "com,ma",
    "new\nline",
    "back\\slash",
    "per%cent",
    "t\tr\r",
    'quo"te',
    "a" * 200,
]
PROBLEM = "Traceback"


@pytest.fixture(scope="session")
def image(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("odd-image") / "layout"
    push_test_image(folder)
    return f"oci:{folder}:test"


@pytest.fixture
def mounting(require_tool):
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and /dev/fuse")
    require_tool("runc")


def envbuilder(*words: str, status: int = 0, cwd: Path | None = None, **options: object) -> str:
    argv = [*options.pop("before", ()), sys.executable, "-m", "envbuilder", *words]
    environ = {"PATH": os.environ["PATH"], **options.pop("environ", {})}
    done = subprocess.run(
        argv, cwd=cwd, env=environ, capture_output=True, stdin=subprocess.DEVNULL, check=False, **options
    )
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == status, said
    assert PROBLEM not in said
    return said


def places(folder: Path, **more: str) -> dict[str, str]:
    return {"ENVBUILDER_STATE": str(folder / "state"), "ENVBUILDER_CHUNKS": str(folder / "chunks"), **more}


@pytest.mark.parametrize(
    ("name", "mode"), [*((name, "auto") for name in ODD), ("co:lon", "unpack"), ("back\\slash", "unpack")]
)
def test_folders_may_have_any_name(mounting, image, tmp_path, name, mode):
    folder = tmp_path / name
    environ = places(folder, ENVBUILDER_MOUNT_MODE=mode)
    (folder / "point").mkdir(parents=True)

    assert "small" in envbuilder("run", image, "--", "cat", "/data/small", environ=environ)
    envbuilder("mount", "--rw", image, str(folder / "point"), environ=environ)
    try:
        (folder / "point/new").write_text("written")
        assert (folder / "point/data/small").read_text() == "small\n"
    finally:
        envbuilder("unmount", str(folder / "point"), environ=environ)

    assert list((folder / "point").iterdir()) == []
    assert list((folder / "state/mounts").iterdir()) == []


@pytest.mark.parametrize("mode", ["auto", "unpack"])
def test_a_strict_umask_does_not_reach_the_image(mounting, image, tmp_path, mode):
    environ = places(tmp_path, ENVBUILDER_MOUNT_MODE=mode)

    said = envbuilder("run", "--user", "1000", image, "--", "ls", "-ld", "/", "/data", environ=environ, umask=0o777)

    assert [line.split()[0] for line in said.splitlines()] == ["drwxr-xr-x", "drwxr-xr-x"]


def test_settings_may_name_folders_by_relative_paths(mounting, image, tmp_path):
    environ = {"ENVBUILDER_STATE": "state", "ENVBUILDER_CHUNKS": "chunks"}
    (tmp_path / "point").mkdir()

    assert "small" in envbuilder("run", image, "--", "cat", "/data/small", environ=environ, cwd=tmp_path)
    envbuilder("mount", image, "point", environ=environ, cwd=tmp_path)
    # From elsewhere, and by what was recorded: nothing depends on where the first command stood.
    envbuilder("unmount", str(tmp_path / "point"), environ=places(tmp_path))

    assert list((tmp_path / "state/mounts").iterdir()) == []


def test_a_mount_that_stays_does_not_keep_the_working_directory_busy(mounting, image, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "point").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "here")], check=True)
    try:
        envbuilder("mount", image, str(tmp_path / "point"), environ=places(tmp_path), cwd=tmp_path / "here")
    finally:
        freed = subprocess.run(["umount", str(tmp_path / "here")], check=False)
    envbuilder("unmount", str(tmp_path / "point"), environ=places(tmp_path))

    assert freed.returncode == 0


@pytest.mark.parametrize("options", [(), ("--rw",)])
@pytest.mark.parametrize("mode", ["auto", "unpack"])
def test_nothing_in_a_mount_that_others_see_is_set_user_id_or_a_device(mounting, image, tmp_path, mode, options):
    environ = places(tmp_path, ENVBUILDER_MOUNT_MODE=mode)
    point = tmp_path / "point"
    point.mkdir()

    envbuilder("mount", *options, image, str(point), environ=environ)
    try:
        line = next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {point} " in line)
    finally:
        envbuilder("unmount", str(point), environ=environ)

    assert {"nosuid", "nodev"} <= set(line.split()[5].split(","))


def test_what_a_job_writes_is_closed_to_other_users_of_the_host(mounting, image, tmp_path):
    command = [sys.executable, "-m", "envbuilder", "run", image, "--", "cat"]
    environ = {"PATH": os.environ["PATH"], **places(tmp_path)}
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdin.write(b"x\n")
        process.stdin.flush()
        process.stdout.readline()
        modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "chunks/scratch").iterdir()]
    finally:
        process.communicate()

    assert modes == [0o700]


@pytest.mark.parametrize("words", [["doctor"], ["inspect", "{image}"]])
def test_a_working_directory_that_was_removed_is_no_reason_to_stop(image, tmp_path, words):
    (tmp_path / "gone").mkdir()
    before = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh"]

    envbuilder(
        *(word.format(image=image) for word in words), environ=places(tmp_path), before=before, cwd=tmp_path / "gone"
    )


def test_a_project_is_asked_for_where_the_working_directory_was_removed(tmp_path):
    (tmp_path / "gone").mkdir()
    before = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh"]

    said = envbuilder(
        "build",
        "hello",
        status=2,
        environ={"ENVBUILDER_STORE": str(tmp_path / "store")},
        before=before,
        cwd=tmp_path / "gone",
    )

    assert "working directory was removed" in said


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("mount", "{image}", "/etc/passwd"), 2),
        (("mount", "{image}", "/etc/passwd/x"), 2),
        (("mount", "{image}", "/etc"), 2),
        (("unmount", "/nothing"), 2),
        (("inspect", "oci:/etc/passwd"), 2),
        (("inspect", "oci-archive:/etc"), 2),
        (("pull", "{image}", "--to", "oci:/proc/x"), 5),
        (("pull", "{image}", "--to", "oci-archive:/proc/x"), 5),
    ],
)
def test_a_path_that_cannot_be_is_explained(image, tmp_path, words, status):
    said = envbuilder(*(word.format(image=image) for word in words), status=status, environ=places(tmp_path))

    assert "hint: " in said


@pytest.mark.parametrize("variable", ["STATE", "CHUNKS"])
@pytest.mark.parametrize(("value", "status"), [("/etc/passwd", 5), ("/proc/nothing", 5), ("", 2)])
def test_a_folder_that_cannot_be_is_explained(mounting, image, tmp_path, variable, value, status):
    environ = places(tmp_path) | {f"ENVBUILDER_{variable}": value}

    said = envbuilder("run", image, "--", "cat", "/data/small", status=status, environ=environ)

    assert "hint: " in said


def test_the_command_runs_without_asserts_a_home_a_locale_or_a_folder_for_temporary_files(mounting, image, tmp_path):
    environ = {**places(tmp_path), "PYTHONOPTIMIZE": "2", "LC_ALL": "C", "TMPDIR": "/nothing"}

    assert "small" in envbuilder("run", image, "--", "cat", "/data/small", environ=environ)


def test_our_own_code_may_lie_in_a_folder_of_any_name(mounting, image, tmp_path):
    folder = tmp_path / "co:lon %s"
    shutil.copytree(
        Path(__file__).parents[2] / "envbuilder", folder / "envbuilder", ignore=shutil.ignore_patterns("__pycache__")
    )

    # From the working directory, which stands first in the path of ``python -m``.
    assert "small" in envbuilder("run", image, "--", "cat", "/data/small", environ=places(tmp_path), cwd=folder)


#: A /dev without fuse, in a name space that ends with the shell.
WITHOUT_FUSE = """
mount -t tmpfs t "$0"; mkdir "$0/pts" "$0/shm"
for name in null zero full random urandom tty; do touch "$0/$name"; mount --bind "/dev/$name" "$0/$name"; done
mount --rbind "$0" /dev; exec "$@"
"""


@pytest.mark.parametrize(("mode", "quiet", "status"), [("auto", (), 0), ("auto", ("--quiet",), 0), ("erofs", (), 5)])
def test_without_fuse_the_image_is_unpacked_and_that_is_said(mounting, image, tmp_path, mode, quiet, status):
    (tmp_path / "dev").mkdir()
    environ = places(tmp_path, ENVBUILDER_MOUNT_MODE=mode)
    before = ["unshare", "--mount", "sh", "-c", WITHOUT_FUSE, str(tmp_path / "dev")]

    said = envbuilder("run", *quiet, image, "--", "cat", "/data/small", status=status, environ=environ, before=before)

    assert ("/dev/fuse" in said, "small" in said) == (not quiet, status == 0)
    assert list((tmp_path / "state/mounts").iterdir()) == []


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words", [("inspect", "{image}"), ("run", "{image}", "--", "sh", "-c", "cat; echo out; echo error >&2")]
)
def test_closed_standard_streams_are_dev_null(mounting, image, tmp_path, words, closed):
    before = ["sh", "-c", f'exec "$@" {closed}', "sh"]

    envbuilder(*(word.format(image=image) for word in words), environ=places(tmp_path), before=before)


@pytest.mark.parametrize(("part", "mode"), [("STATE", "auto"), ("CHUNKS", "unpack")])
@pytest.mark.parametrize("options", ["size=64k", "size=64k,ro"])
def test_a_disk_that_is_full_or_read_only_is_named(mounting, image, tmp_path, part, mode, options):
    (tmp_path / "disk").mkdir()
    environ = places(tmp_path, ENVBUILDER_MOUNT_MODE=mode) | {f"ENVBUILDER_{part}": str(tmp_path / "disk/x")}
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path / "disk")], check=True)
    try:
        if options == "size=64k" and part == "STATE":
            with suppress(OSError):
                (tmp_path / "disk/junk").write_bytes(bytes(1 << 20))
        said = envbuilder("run", image, "--", "cat", "/data/small", status=5, environ=environ)
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=True)

    assert str(tmp_path / "disk/x") in said
    assert "hint: " in said
