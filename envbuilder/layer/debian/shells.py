"""etc/shells: what debianutils' ``update-shells`` makes on a first installation."""

from __future__ import annotations

from collections.abc import Iterator

from envbuilder.layer.deb import merged
from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, file

_TEMPLATE, _PACKAGES = "usr/share/debianutils/shells", "usr/share/debianutils/shells.d/"


def wanted(path: str) -> bool:
    """Whether the package file at ``path`` lists shells."""
    return path == _TEMPLATE or path.startswith(_PACKAGES)


def shell_entries(system: System) -> Iterator[Entry]:
    """The list of login shells, each with its place in a merged /usr, and the state update-shells keeps."""
    shells: list[str] = []
    for path in (_TEMPLATE, *sorted(name for name in system.contents if name.startswith(_PACKAGES))):
        for raw in system.read(path).decode().splitlines():
            line = raw.partition("#")[0]
            for shell in (line, "/" + merged(line.lstrip("/"))) if line else ():
                if shell not in shells:
                    shells.append(shell)
    template = system.read(_TEMPLATE).decode()
    known = template.splitlines()
    added = "".join(f"{shell}\n" for shell in shells if shell not in known)
    yield file("etc/shells", (template + added).encode())
    yield file("var/lib/shells.state", "".join(f"{shell}\n" for shell in shells).encode())
