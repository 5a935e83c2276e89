"""Starts that were decided before: what was found out for a start of a whole image is kept, and used by the next.

    STATE/starts/<key>    a Decision, as JSON

``key`` is the digest of all that it was decided from, this envbuilder and this boot included (cli/warm.py): when any of
that changes, there is no such file. What may change without it (a layer that is evicted, a device of the host, the
container runtime) is looked at by every start. A start without a decision, or of which one is wrong, goes the ordinary
way, which decides anew. docs/decisions/0014-starts-of-whole-images.md.

It imports little: reading an image's documents, and the modules for it, would take longer than the container to start.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.container.commands import check_command
from envbuilder.mount.container.foreground import Container
from envbuilder.mount.container.program import Program
from envbuilder.mount.direct import Whole, mounted
from envbuilder.mount.host.kernel import in_own_users

#: Decisions that are kept; with one more those that were made longest ago go.
_MOST = 256
#: Bytes of a decision: an image's environment, and what a host with many GPUs adds to a container.
_MAX_SIZE = 4 << 20


class Decision(NamedTuple):
    """What was found out for a start.

    config: config.json of the container (OCI runtime-spec) but for its root, its command, and the variables of its
    caller, which may be secrets. entrypoint, command: the image's own. runtime: what starts it. looked_at: files and
    devices by path, as ``seen`` sees them.
    """

    whole: Whole
    config: Mapping[str, Any]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    runtime: Program
    looked_at: Mapping[str, list[int]]


class NotAsDecided(HostError):
    """Something is not as it was when a start was decided."""

    hint = "Start it again."


def seen(path: str) -> list[int]:
    """What of a file or device must not have changed: kind and mode, device number, size, time of its last change.

    Of a device, not its time: that is of its last use.

    Raises:
        OSError: it is gone.
    """
    found = os.stat(path)  # noqa: PTH116 - a string
    if stat.S_ISREG(found.st_mode):
        return [found.st_mode, 0, found.st_size, found.st_mtime_ns]
    return [found.st_mode, found.st_rdev, found.st_uid, found.st_gid]


def find(folder: Path, key: str) -> Decision | None:
    """What was decided under ``key``, if it is there and ours."""
    try:
        opened = os.open(folder / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(opened, "rb") as file:
            found = os.fstat(opened)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022 or found.st_size > _MAX_SIZE:
                return None
            value = json.loads(file.read())
        whole = Whole(**{**value["whole"], "devices": tuple(map(tuple, value["whole"]["devices"]))})
        return Decision(
            whole=whole,
            config=value["config"],
            entrypoint=tuple(value["entrypoint"]),
            command=tuple(value["command"]),
            runtime=Program(**{**value["runtime"], "options": tuple(value["runtime"]["options"])}),
            looked_at=value["looked_at"],
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def keep(folder: Path, key: str, decision: Decision) -> None:
    """Keep ``decision``; a state directory that takes nothing costs the next start time, no more."""
    value = {**decision._asdict(), "whole": decision.whole._asdict(), "runtime": decision.runtime._asdict()}
    temporary = folder / f".{key}.{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(opened, "wb") as file:
            file.write(json.dumps(value).encode())
        temporary.replace(folder / key)
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in kept[:-_MOST]:
            old.unlink(missing_ok=True)


def start(decision: Decision, words: Sequence[str], env: Mapping[str, str]) -> int | None:
    """Run ``words``, or the image's own command, as was decided, with ``env`` besides; its status. None: not begun."""
    begun = False
    try:
        _check(decision)
        with mounted(decision.whole) as mount:
            bundle = mount.folder.path
            config = decision.runtime.config(_config(decision, words, env, mount.root))
            (bundle / "config.json").write_text(json.dumps(config))
            argv, pid_file = decision.runtime.argv(bundle, mount.folder.id)
            container = Container(argv, pid_file, hides=decision.runtime.hides, meanwhile=mount.guard.look)
            begun = True
            return container.run(None)
    except (EnvbuilderError, OSError):
        # Whatever it is, the ordinary way says it better, or does without. But no command runs twice.
        if begun:
            raise
        return None


def _check(decision: Decision) -> None:
    """Nothing, if all is as it was.

    Raises:
        NotAsDecided, OSError: something is not.
    """
    if in_own_users():
        raise NotAsDecided("not root of the host")
    for path, before in decision.looked_at.items():
        if seen(path) != before:
            raise NotAsDecided(f"{path}: changed")
    metadata = Path(decision.whole.metadata)
    # The kernel parses it as root.
    if hashlib.sha256(metadata.read_bytes()).hexdigest() != decision.whole.metadata_sha256:
        raise NotAsDecided(f"{metadata}: not what it was")


def _config(decision: Decision, words: Sequence[str], more: Mapping[str, str], root: Path) -> Mapping[str, Any]:
    config = decision.config
    args = [*decision.entrypoint, *(words or decision.command)]
    if not args:
        raise NotAsDecided("no command")
    env = {**dict(text.partition("=")[::2] for text in config["process"]["env"]), **more}
    process = {**config["process"], "args": args, "env": [f"{name}={value}" for name, value in env.items()]}
    outside = [item["destination"] for item in config["mounts"]]
    check_command(root, args, env, process["cwd"], outside=outside)
    return {**config, "process": process, "root": {**config["root"], "path": str(root)}}
