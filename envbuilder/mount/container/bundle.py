"""The OCI runtime configuration of one container: config.json from the image's config. Pure.

Source: OCI runtime-spec 1.0.2 config.md, config-linux.md. Defaults are Docker's (moby
oci/defaults.go), except where a job wants the host: its network and host name, and memory for /dev/shm.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import SpecError
from envbuilder.mount.container.cdi import Edits
from envbuilder.mount.container.host import Limit
from envbuilder.mount.container.users import ContainerUser
from envbuilder.oci.config import ImageConfig

#: PATH of a process whose image has none (moby oci/defaults.go).
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        # Not MKNOD: a container has the devices that it was given, with control groups of its own or without.
        *("CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "NET_RAW", "SETGID", "SETUID", "SETFCAP"),
        *("SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE"),
    )
]
_MASKED = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
#: No "network" and no "uts": a job talks to its peers under the host's name and addresses.
#: "cgroup": it sees the control groups, and so the limits, that its processes are in, as its own.
_NAMESPACES = ("pid", "ipc", "mount", "cgroup")


class NoCommand(SpecError):
    """There is nothing to run: no command was given and the image has none."""

    hint = "Write the command after the image's name."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or directory of the host that the container sees at ``destination``."""

    source: Path
    destination: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What the caller adds to the image's config. env: wins over the image's. working_dir: "" for the image's."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    terminal: bool = False
    binds: tuple[Bind, ...] = ()
    limits: tuple[Limit, ...] = ()


def arguments(config: ImageConfig, command: Sequence[str]) -> tuple[str, ...]:
    """What is executed: the image's entrypoint, then ``command`` or the image's own.

    Raises:
        NoCommand: neither has any.
    """
    words = (*config.entrypoint, *(command or config.command))
    if not words:
        raise NoCommand("run: the image has no command, and none was given")
    return words


def environment(config: ImageConfig, options: ProcessOptions, user: ContainerUser, edits: Edits) -> dict[str, str]:
    """The environment of the process: defaults, then the image's, then the devices', then the caller's."""
    env = {"PATH": DEFAULT_PATH, "HOME": user.home}
    if options.terminal:
        env["TERM"] = "xterm"
    env.update(config.env)
    env.update(dict(text.partition("=")[::2] for text in edits.env))
    env.update(options.env)
    return env


def runtime_config(
    config: ImageConfig, options: ProcessOptions, user: ContainerUser, edits: Edits, *, root: Path
) -> dict[str, Any]:
    """The value of config.json for a container whose root file system, writable, is at ``root``.

    Raises:
        NoCommand: see ``arguments``.
    """
    env = environment(config, options, user, edits)
    capabilities = {"bounding": _CAPABILITIES}
    if user.uid == 0:
        capabilities |= {"effective": _CAPABILITIES, "permitted": _CAPABILITIES}
    value: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": options.terminal,
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": [*user.groups, *edits.groups]},
            "args": list(arguments(config, options.command)),
            "env": [f"{name}={text}" for name, text in env.items()],
            "cwd": _absolute(posixpath.join(config.working_dir, options.working_dir)),
            "capabilities": capabilities,
            "rlimits": [{"type": limit.name, "soft": limit.soft, "hard": limit.hard} for limit in options.limits],
            "noNewPrivileges": False,
        },
        "root": {"path": str(root), "readonly": False},
        "mounts": [*_mounts(), *(_bind(bind) for bind in options.binds), *(dict(item) for item in edits.mounts)],
        "linux": {
            "namespaces": [{"type": name} for name in _NAMESPACES],
            "maskedPaths": _MASKED,
            "readonlyPaths": _READ_ONLY,
            "devices": [_node(node) for node in edits.nodes],
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *(_allow(node) for node in edits.nodes)]},
        },
    }
    if edits.hooks:
        hooks: dict[str, list[Mapping[str, Any]]] = {}
        for name, hook in edits.hooks:
            hooks.setdefault(name, []).append(hook)
        value["hooks"] = hooks
    return value


def _absolute(path: str) -> str:
    """``path`` from the root on, as runtimes insist on; Docker makes of it the same."""
    return "/" + posixpath.normpath("/" + path).lstrip("/")


def _mounts() -> list[dict[str, Any]]:
    def mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
        return {"destination": destination, "type": kind, "source": source, "options": list(options)}

    return [
        mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        # No size: Docker's 64 MiB is what PyTorch's data loaders die of.
        mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777"),  # noqa: S108 - in the container
        mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        mount("/sys/fs/cgroup", "cgroup", "cgroup", "ro", "nosuid", "noexec", "nodev"),
    ]


def _bind(bind: Bind) -> dict[str, Any]:
    options = ["rbind", "rprivate", "ro" if bind.read_only else "rw"]
    return {"destination": bind.destination, "type": "bind", "source": str(bind.source), "options": options}


def _node(node: Any) -> dict[str, Any]:
    value = {"path": node.path, "type": node.type, "major": node.major, "minor": node.minor}
    return value | {"fileMode": node.mode & 0o7777, "uid": node.uid, "gid": node.gid}


def _allow(node: Any) -> dict[str, Any]:
    return {"allow": True, "type": node.type, "major": node.major, "minor": node.minor, "access": node.access}
