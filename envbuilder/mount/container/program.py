"""A container runtime as it works on this host: how it is called, and what of a container is up to us then.

A start of an image that is whole on this node imports this before its command runs, so it imports little itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_SHELL = "/bin/sh"
#: A hook is written the container's state to its stdin, and who does not read that may end too early (EPIPE).
_REMOUNT = 'read -r _; exec "$0" -o "$1" "$2"'


class Program(NamedTuple):
    """options: before its verb. hides: unified control groups of a hybrid host are hidden from it (``hide_unified``).

    remount: mount(8), where the runtime makes no control groups, and so no rule which devices may be opened: device
    nodes of an image are made none by a mount without devices. "" where that is not needed.
    """

    path: str
    options: tuple[str, ...] = ()
    hides: bool = False
    remount: str = ""

    def argv(self, bundle: Path, id_: str) -> tuple[list[str], Path]:
        """The command line that runs the container of ``bundle``, and the file that gets its first process's id."""
        root, pid_file = str(bundle / "runtime"), bundle / "container"
        words = [self.path, *self.options, "--root", root, "run", "--bundle", str(bundle), "--pid-file", str(pid_file)]
        return [*words, f"envbuilder-{id_}"], pid_file

    def config(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """The value of config.json for it: ``value``, with what it leaves to us."""
        if not self.remount:
            return value
        # crun mounts the root anew, without the flags that we gave it; after that come these hooks (runtime-spec).
        root = value["root"]
        flags = "remount,bind,nodev" + (",ro" if root.get("readonly") else "")
        hook = {"path": _SHELL, "args": ["sh", "-c", _REMOUNT, self.remount, flags, root["path"]]}
        hooks = value.get("hooks", {})
        return {**value, "hooks": {**hooks, "createContainer": [hook, *hooks.get("createContainer", ())]}}
