"""Effects: what maintainer scripts do, as values. ``known_scripts.py`` says which package has which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import DIRECTORY, FILE, Entry, file, symlink


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of the package copied to a path outside dpkg's care, with its bytes and mode 0644."""

    source: str
    path: str


@dataclass(frozen=True, slots=True)
class Make:
    """A directory."""

    path: str
    mode: int = 0o755
    group: str = "root"
    user: str = "root"


@dataclass(frozen=True, slots=True)
class Write:
    """A file with fixed text."""

    path: str
    text: str = ""
    mode: int = 0o644
    group: str = "root"


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Divert:
    """A diversion that moves no file of the set: a guard of the move to a merged /usr.

    In both paths ``<multiarch>`` stands for the platform's tuple.
    """

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Account:
    """A system group, with ``user`` also a system user of that name, ids allocated from 100."""

    name: str
    user: bool = False
    home: str = "/nonexistent"
    shell: str = "/usr/sbin/nologin"
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """A file of a package gets another owner or mode; ``override`` also records it for dpkg."""

    path: str
    mode: int
    user: str = "root"
    group: str = "root"
    override: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Slave:
    """A link that follows its master's choice."""

    link: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One choice for the master link ``link``; paths are absolute, as the script gives them.

    Only scripts that compute their choices need it in the table: literal ones are read.
    """

    link: str
    name: str
    path: str
    priority: int
    slaves: tuple[Slave, ...] = ()


Effect: TypeAlias = Copy | Make | Write | Link | Divert | Account | Own | Alternative


def effect_entries(effect: Effect, system: System, uids: Mapping[str, int], gids: Mapping[str, int]) -> Iterator[Entry]:
    """What ``effect`` puts into the tree; nothing where a package ships the path (scripts test for that)."""
    match effect:
        case Make(path, mode, group, user):
            if path not in system.tree:
                yield Entry(path=path, mode=DIRECTORY | mode, uid=uids[user], gid=gids[group])
        case Copy(source, path):
            if path not in system.tree:
                yield file(path, system.read(source))
        case Write(path, text, mode, group):
            if path not in system.tree:
                yield replace(file(path, text.encode(), mode), gid=gids[group])
        case Link(path, target):
            if path not in system.tree:
                yield symlink(path, target)
        case Own(path, mode, user, group):
            owned = replace(file(path, system.read(path)), mode=FILE | mode)
            yield replace(owned, uid=uids[user], gid=gids[group])
        case Divert() | Account() | Alternative():
            return  # they are lines of tables that dpkg.py, users.py and alternatives.py write
