"""Starts for users who are not root: a user name space of our own, in which we are, and what does not work in one.

Only our own user and group exist there: files of others appear as nobody's, and the command runs as root of the name
space, which is us. The kernel mounts FUSE and overlay there and no EROFS, so images are shown file by file (treefs.py).
user_namespaces(7); lazy_start.md 5.3 and 5.6.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from envbuilder.errors import HostError
from envbuilder.mount.host import kernel

_log = logging.getLogger(__name__)


class NoOwnUsers(HostError):
    """This host, or this process, gets no user name space."""

    hint = "Run as root (sudo), or allow user namespaces (sysctl user.max_user_namespaces; AppArmor on Ubuntu)."


class NotOurUser(HostError):
    """Without root a command can only run as root of its name space."""

    hint = "Start it with --user 0, or as root of the host."


def become_root_of_our_own() -> bool:
    """Let this process, which must have one thread, be root in name spaces of its own; False: it is root already.

    Raises:
        NoOwnUsers: the kernel refuses.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return False
    try:
        kernel.own_users()
        # A group may be mapped by who cannot drop it only (user_namespaces(7), setgroups).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        kernel.private_mounts()
    except OSError as error:
        raise NoOwnUsers(f"a user name space of our own: {error.strerror}") from error
    except kernel.MountRefused as error:
        raise NoOwnUsers(str(error)) from error
    _log.info("not root: starting in a user name space of our own")
    return True


def adapted(value: dict[str, Any]) -> dict[str, Any]:
    """The config.json ``value`` as it works in our own user name space; as it is for root of the host.

    Raises:
        NotOurUser: the process is to run as a user who is not there.
    """
    if not kernel.in_own_users():
        return value
    process, linux = value["process"], value["linux"]
    if process["user"]["uid"] or process["user"]["gid"]:
        who = f"{process['user']['uid']}:{process['user']['gid']}"
        raise NotOurUser(f"run: the command is to run as {who}, and without root only 0:0 is there")
    mounts = [mount for mount in value["mounts"] if mount["destination"] not in ("/sys", "/sys/fs/cgroup")]
    for mount in mounts:
        if mount["type"] == "devpts":
            mount["options"] = [option for option in mount["options"] if not option.startswith("gid=")]
    # A new sysfs needs a network name space of ours; the host's can be shown.
    options = ["rbind", "ro", "nosuid", "noexec", "nodev"]
    mounts.append({"destination": "/sys", "type": "bind", "source": "/sys", "options": options})
    return {
        **value,
        "process": {**process, "user": {"uid": 0, "gid": 0, "additionalGids": []}},
        "mounts": mounts,
        "linux": {key: item for key, item in linux.items() if key != "resources"},
    }
