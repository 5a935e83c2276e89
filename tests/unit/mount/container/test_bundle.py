"""config.json, users, CDI devices and the command: what a container is started with."""

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest

from envbuilder.mount.container.bundle import Bind, NoCommand, ProcessOptions, arguments, environment, runtime_config
from envbuilder.mount.container.cdi import BadCdi, Edits, NoSuchDevice, device_edits, has_kind
from envbuilder.mount.container.commands import CommandNotFound, check_command
from envbuilder.mount.container.host import host_limits
from envbuilder.mount.container.runtime import try_runtime
from envbuilder.mount.container.trial import exit_program
from envbuilder.mount.container.users import ContainerUser, UnknownUser, find_user
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramFailed

CONFIG = ImageConfig(
    platform=Platform("x86_64"), diff_ids=(), env={"A": "image", "PATH": "/opt/env/bin:/usr/bin"},
    entrypoint=("/entry",), command=("default",), working_dir="/job",
)  # fmt: skip


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n7:x:9:9::/:\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\nstaff:x:50:alice,bob\nvideo:x:44:bob\n")
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/tool").write_text("#!")
    (tmp_path / "usr/bin/tool").chmod(0o755)
    (tmp_path / "bin").symlink_to("/usr/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", ContainerUser(home="/root")),
        ("0", ContainerUser(home="/root")),
        ("alice", ContainerUser(uid=1000, gid=1001, groups=(50,), home="/home/alice")),
        ("1000", ContainerUser(uid=1000, gid=1001, groups=(50,), home="/home/alice")),
        ("alice:video", ContainerUser(uid=1000, gid=44, home="/home/alice")),
        ("1234", ContainerUser(uid=1234)),
        ("1234:77", ContainerUser(uid=1234, gid=77)),
    ],
)
def test_users_are_those_of_the_image(root, text, want):
    assert find_user(root, text) == want


@pytest.mark.parametrize("text", ["bob", "alice:nobody", "4294967295", "99999999999"])
def test_unknown_users_are_refused(root, text):
    with pytest.raises(UnknownUser):
        find_user(root, text)


def test_a_passwd_that_is_a_link_out_of_the_image_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("eve:x:5:5::/:\n")
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/passwd").symlink_to(tmp_path / "secret")

    with pytest.raises(UnknownUser):
        find_user(tmp_path / "root", "eve")


def test_arguments_are_entrypoint_and_command():
    assert arguments(CONFIG, ()) == ("/entry", "default")
    assert arguments(CONFIG, ("a", "b")) == ("/entry", "a", "b")
    with pytest.raises(NoCommand):
        arguments(ImageConfig(platform=Platform("x86_64"), diff_ids=()), ())


def test_the_caller_s_environment_wins_over_devices_over_the_image():
    options = ProcessOptions(env={"A": "caller"})
    edits = Edits(env=("A=device", "B=x=y"))
    env = environment(CONFIG, options, ContainerUser(home="/h"), edits)

    assert env == {"PATH": "/opt/env/bin:/usr/bin", "HOME": "/h", "A": "caller", "B": "x=y"}


def test_a_job_keeps_the_host_s_network_and_name_and_loses_everything_else():
    value = runtime_config(CONFIG, ProcessOptions(), ContainerUser(), Edits(), root=Path("/r"))

    assert [item["type"] for item in value["linux"]["namespaces"]] == ["pid", "ipc", "mount", "cgroup"]
    assert value["process"]["cwd"] == "/job"
    assert value["root"] == {"path": "/r", "readonly": False}


def test_a_user_other_than_root_gets_no_capability_at_once():
    value = runtime_config(CONFIG, ProcessOptions(), ContainerUser(uid=5), Edits(), root=Path("/r"))

    assert set(value["process"]["capabilities"]) == {"bounding"}


def test_binds_are_read_only_unless_asked_otherwise():
    binds = (
        Bind(source=Path("/data"), destination="/data"),
        Bind(source=Path("/out"), destination="/out", read_only=False),
    )
    value = runtime_config(CONFIG, ProcessOptions(binds=binds), ContainerUser(), Edits(), root=Path("/r"))
    found = {item["destination"]: item["options"] for item in value["mounts"] if item["type"] == "bind"}

    assert found == {"/data": ["rbind", "rprivate", "ro"], "/out": ["rbind", "rprivate", "rw"]}


def test_limits_never_exceed_our_own():
    import resource

    limits = {limit.name: limit for limit in host_limits()}

    assert limits["RLIMIT_NOFILE"].hard == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def cdi(folder: Path, devices: list, **edits) -> Path:
    folder.mkdir()
    value = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits}
    (folder / "nvidia.json").write_text(json.dumps(value))
    return folder


def test_cdi_edits_of_the_kind_and_the_device_are_both_applied(tmp_path):
    device = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null"}]}}
    mount = {"hostPath": "/usr/lib/libcuda.so.1", "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro", "bind"]}
    hook = {"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", "update-ldcache"]}
    folder = cdi(tmp_path / "cdi", [device], env=["NVIDIA_VISIBLE_DEVICES=void"], mounts=[mount], hooks=[hook])
    edits = device_edits("nvidia.com/gpu=all", [folder])
    value = runtime_config(CONFIG, ProcessOptions(), ContainerUser(), edits, root=Path("/r"))

    assert has_kind("nvidia.com/gpu", [folder])
    assert "NVIDIA_VISIBLE_DEVICES=void" in value["process"]["env"]
    assert value["linux"]["devices"][0] | {"fileMode": 0} == {
        "path": "/dev/gpu0", "type": "c", "major": 1, "minor": 3, "fileMode": 0, "uid": 0, "gid": 0,
    }  # fmt: skip
    assert value["linux"]["resources"]["devices"][-1] == {
        "allow": True,
        "type": "c",
        "major": 1,
        "minor": 3,
        "access": "rwm",
    }
    assert {
        "destination": "/usr/lib/libcuda.so.1",
        "source": "/usr/lib/libcuda.so.1",
        "type": "bind",
        "options": ["ro", "bind"],
    } in value["mounts"]
    assert value["hooks"] == {"createContainer": [{"path": "/usr/bin/hook", "args": ["hook", "update-ldcache"]}]}


def test_a_later_cdi_folder_wins(tmp_path):
    one = cdi(tmp_path / "one", [{"name": "all", "containerEdits": {"env": ["A=1"]}}])
    two = cdi(tmp_path / "two", [{"name": "all", "containerEdits": {"env": ["A=2"]}}])

    assert device_edits("nvidia.com/gpu=all", [one, two]).env == ("A=2",)


def test_a_device_that_the_host_does_not_describe_is_refused(tmp_path):
    assert not has_kind("nvidia.com/gpu", [tmp_path])
    with pytest.raises(NoSuchDevice, match=r"nvidia\.com/gpu=all"):
        device_edits("nvidia.com/gpu=all", [tmp_path])


@pytest.mark.parametrize("text", ["[]", "{", '{"kind": "nvidia.com/gpu", "devices": [1]}'])
def test_a_malformed_cdi_file_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(BadCdi, match=r"x\.json"):
        device_edits("nvidia.com/gpu=all", [tmp_path])


@pytest.mark.parametrize("words", [["tool"], ["/usr/bin/tool"], ["/bin/tool"], ["bin/tool"], ["/mnt/tool"], ["/mnt"]])
def test_a_command_of_the_image_or_of_a_bind_is_found(root, words):
    check_command(root, words, {"PATH": "/nowhere:/bin"}, "/usr", outside=["/mnt"])


@pytest.mark.parametrize(
    ("word", "says"),
    [("tol", "PATH"), ("/bin/no", "is not there"), ("/etc/passwd", "not executable"), ("/mnt2", "not there")],
)
def test_a_missing_command_is_named_before_a_container_is_made(root, word, says):
    with pytest.raises(CommandNotFound, match=says):
        check_command(root, [word], {"PATH": "/bin"}, "/", outside=["/mnt"])


def test_the_probe_s_program_is_an_elf_file():
    for machine in ("x86_64", "aarch64"):
        assert exit_program(machine)[:7] == b"\x7fELF\x02\x01\x01"


@pytest.mark.parametrize("text", ["9" * 5000, "alice:" + "9" * 5000])
def test_a_number_of_any_length_is_refused_as_a_user(root, text):
    with pytest.raises(UnknownUser) as raised:
        find_user(root, text)

    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_passwd_that_is_no_file_is_never_opened(tmp_path, make):
    (tmp_path / "etc").mkdir()
    make(tmp_path / "etc/passwd")

    assert find_user(tmp_path, "7") == ContainerUser(uid=7)


@pytest.mark.skipif(os.geteuid() != 0, reason="devices are made by root")
def test_a_passwd_that_is_a_device_is_never_opened(tmp_path):
    (tmp_path / "etc").mkdir()
    os.mknod(tmp_path / "etc/passwd", stat.S_IFCHR | 0o644, os.makedev(1, 5))  # /dev/zero

    assert find_user(tmp_path, "7") == ContainerUser(uid=7)


@pytest.mark.parametrize(
    ("image", "wanted", "cwd"),
    [("/job", "", "/job"), ("", "", "/"), ("../..", "", "/"), ("/a/../../b", "", "/b"), ("/job", "sub", "/job/sub"),
     ("/job", "/etc", "/etc"), ("//x", "", "/x")],
)  # fmt: skip
def test_the_working_directory_is_absolute_whatever_an_image_says(image, wanted, cwd):
    config = dataclasses.replace(CONFIG, working_dir=image)

    value = runtime_config(config, ProcessOptions(working_dir=wanted), ContainerUser(), Edits(), root=Path("rootfs"))

    assert value["process"]["cwd"] == cwd


@pytest.mark.parametrize(
    ("error", "again"),
    [(OSError(28, "No space left on device"), True), (ProgramFailed(["runc"], -1, "no answer within 20 s"), True), (ProgramFailed(["runc"], 1, "no cgroups"), False)],
)  # fmt: skip
def test_only_what_a_runtime_itself_refused_is_remembered(tmp_path, error, again):
    calls = []

    def refuse(argv, **_):
        calls.append(argv)
        raise error

    assert not try_runtime("/bin/true", tmp_path, runner=refuse).works
    tries = len(calls)
    assert not try_runtime("/bin/true", tmp_path, runner=refuse).works

    assert tries
    assert (len(calls) > tries) == again
