"""A runtime that makes no control groups gets a mount without devices in their place."""

from pathlib import Path

from envbuilder.mount.container.program import Program


def test_a_runtime_with_control_groups_gets_its_configuration_as_it_is():
    value = {"root": {"path": "/r", "readonly": False}}

    assert Program("/bin/runc").config(value) == value


def test_one_without_mounts_the_root_without_devices_before_any_other_hook():
    other = {"path": "/other"}
    value = {"root": {"path": "/r", "readonly": True}, "hooks": {"createContainer": [other], "poststop": [other]}}

    hooks = Program("/bin/crun", remount="/bin/mount").config(value)["hooks"]

    assert hooks["createContainer"][0]["args"][-3:] == ["/bin/mount", "remount,bind,nodev,ro", "/r"]
    assert hooks["createContainer"][1:] == hooks["poststop"] == [other]


def test_the_command_line_has_the_options_before_the_verb():
    words, pid_file = Program("/bin/crun", ("--x",)).argv(Path("/b"), "1")

    assert words[:3] == ["/bin/crun", "--x", "--root"]
    assert words.index("run") > 2
    assert words[words.index("--pid-file") + 1] == str(pid_file)
