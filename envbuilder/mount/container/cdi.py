"""Container Device Interface: what a host says a container needs to use its GPUs.

Source: cncf-tags/container-device-interface SPEC.md 0.8. Files are read from ``/etc/cdi`` and
``/var/run/cdi``, the latter wins. JSON always; YAML where PyYAML is installed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import HostError
from envbuilder.mount.container.host import CDI_DIRECTORIES

_MAX_FILE = 4 << 20
_HINT = "Make one with: nvidia-ctk cdi generate --format=json --output=/etc/cdi/nvidia.json"
_HOOKS = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})


class NoSuchDevice(HostError):
    """The host has no CDI specification of a device that was asked for."""

    hint = _HINT


class BadCdi(HostError):
    """A CDI specification cannot be read."""

    hint = _HINT


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device that appears in the container."""

    path: str
    host_path: str
    type: str
    major: int
    minor: int
    mode: int
    access: str = "rwm"
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is added to a container. mounts: as OCI has them. hooks: (name, OCI hook)."""

    env: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mapping[str, Any], ...] = ()
    hooks: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    groups: tuple[int, ...] = ()

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            env=self.env + other.env,
            nodes=self.nodes + other.nodes,
            mounts=self.mounts + other.mounts,
            hooks=self.hooks + other.hooks,
            groups=self.groups + other.groups,
        )


def has_kind(kind: str, directories: Sequence[Path] = CDI_DIRECTORIES) -> bool:
    """Whether the host describes devices of ``kind`` (``nvidia.com/gpu``); unreadable files count as no.

    Raises:
        BadCdi: one that names ``kind`` cannot be read.
    """
    return any(value.get("kind") == kind for _, value in _specs(directories))


def device_edits(name: str, directories: Sequence[Path] = CDI_DIRECTORIES) -> Edits:
    """What the device ``name`` (``vendor.com/class=device``) adds to a container.

    Raises:
        NoSuchDevice: no specification has it. BadCdi: a file is malformed.
    """
    kind, _, wanted = name.partition("=")
    found: Edits | None = None
    for file, value in _specs(directories):
        if value.get("kind") != kind:
            continue
        for device in _list(value, "devices", file):
            if device.get("name") == wanted:
                found = _edits(value.get("containerEdits"), file) + _edits(device.get("containerEdits"), file)
    if found is None:
        where = ", ".join(map(str, directories))
        raise NoSuchDevice(f"device {name}: no CDI specification in {where} has it")
    return found


def _specs(directories: Sequence[Path]) -> list[tuple[Path, Mapping[str, Any]]]:
    found = []
    for directory in directories:
        try:
            files = sorted(path for path in directory.iterdir() if path.suffix in (".json", ".yaml", ".yml"))
        except OSError:
            continue
        for file in files:
            if (value := _load(file)) is not None:
                found.append((file, value))
    return found


def _load(file: Path) -> Mapping[str, Any] | None:
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_FILE)
        if file.suffix == ".json":
            value = json.loads(data)
        else:
            try:
                import yaml  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - optional
            except ImportError:
                raise BadCdi(f"{file}: it is YAML and PyYAML is not installed") from None
            value = yaml.safe_load(data)
    except (OSError, ValueError) as error:
        raise BadCdi(f"{file}: {error}") from error
    if not isinstance(value, dict):
        raise BadCdi(f"{file}: want an object with cdiVersion, kind and devices")
    return value


def _edits(value: object, file: Path) -> Edits:
    if value is None:
        return Edits()
    if not isinstance(value, dict):
        raise BadCdi(f"{file}: containerEdits: want an object")
    return Edits(
        env=tuple(str(text) for text in value.get("env") or ()),
        nodes=tuple(_node(item, file) for item in _list(value, "deviceNodes", file)),
        mounts=tuple(_mount(item, file) for item in _list(value, "mounts", file)),
        hooks=tuple(_hook(item, file) for item in _list(value, "hooks", file)),
        groups=tuple(int(item) for item in value.get("additionalGIDs") or ()),
    )


def _list(value: Mapping[str, Any], key: str, file: Path) -> list[dict[str, Any]]:
    items = value.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadCdi(f"{file}: {key}: want a list of objects")
    return items


def _node(item: Mapping[str, Any], file: Path) -> DeviceNode:
    path = _text(item, "path", file)
    host_path = str(item.get("hostPath") or path)
    try:
        found = os.stat(host_path)  # noqa: PTH116 - device nodes
    except OSError as error:
        raise BadCdi(f"{file}: device node {host_path}: {error.strerror}") from error
    kind = "c" if stat.S_ISCHR(found.st_mode) else "b" if stat.S_ISBLK(found.st_mode) else "p"
    return DeviceNode(
        path=path,
        host_path=host_path,
        type=str(item.get("type") or kind),
        major=int(item.get("major", os.major(found.st_rdev))),
        minor=int(item.get("minor", os.minor(found.st_rdev))),
        mode=int(item.get("fileMode", stat.S_IMODE(found.st_mode))),
        access=str(item.get("permissions") or "rwm"),
        uid=int(item.get("uid", found.st_uid)),
        gid=int(item.get("gid", found.st_gid)),
    )


def _mount(item: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    options = [str(option) for option in item.get("options") or ("ro", "nosuid", "nodev", "bind")]
    kind = str(item.get("type") or "bind")
    source = _text(item, "hostPath", file)
    return {"destination": _text(item, "containerPath", file), "source": source, "type": kind, "options": options}


def _hook(item: Mapping[str, Any], file: Path) -> tuple[str, Mapping[str, Any]]:
    name = _text(item, "hookName", file)
    if name not in _HOOKS:
        raise BadCdi(f"{file}: hookName: want one of {', '.join(sorted(_HOOKS))}, got {name[:40]!r}")
    hook = {key: item[key] for key in ("args", "env", "timeout") if item.get(key)}
    return name, {"path": _text(item, "path", file), **hook}


def _text(item: Mapping[str, Any], key: str, file: Path) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise BadCdi(f"{file}: {key}: want a text, got {value!r}")
    return value
