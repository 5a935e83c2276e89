"""Effects: what maintainer scripts do, as values. ``known_scripts.py`` says which package has which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from stat import S_ISDIR
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

    In both paths ``<multiarch>`` stands for the platform's tuple. machine: the only one that has it; "" for all.
    """

    path: str
    to: str
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """A system group, with ``user`` also a system user of that name, ids allocated from 100.

    group: one of base-passwd's, for a user that gets no group of its own.
    """

    name: str
    user: bool = False
    group: str = ""
    home: str = "/nonexistent"
    shell: str = "/usr/sbin/nologin"
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """A file or directory of a package gets another owner or mode; ``override`` also records it for dpkg."""

    path: str
    mode: int
    user: str = "root"
    group: str = "root"
    override: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """The files of packages directly in ``directory`` whose names have ``ending``, one after the other."""

    directory: str
    ending: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Slave:
    """A link that follows its master's choice."""

    link: str
    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One choice for the master link ``link``; paths are absolute, as the script gives them.

    In all paths ``<architecture>`` stands for Debian's name of the platform. Only scripts that compute their
    choices need it in the table: literal ones are read.
    """

    link: str
    name: str
    path: str
    priority: int
    slaves: tuple[Slave, ...] = ()


Effect: TypeAlias = Copy | Make | Write | Link | Divert | Account | Own | Join | Alternative


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
        case Join(path=path):
            names = sorted(name for name in system.contents if is_joined(effect, name))
            yield file(path, b"".join(system.contents[name] for name in names))
        case Own(path, mode, user, group) if path in system.tree and S_ISDIR(system.tree[path].mode):
            yield Entry(path=path, mode=DIRECTORY | mode, uid=uids[user], gid=gids[group])
        case Own(path, mode, user, group):
            owned = replace(file(path, system.read(path)), mode=FILE | mode)
            yield replace(owned, uid=uids[user], gid=gids[group])
        case Divert() | Account() | Alternative():
            return  # they are lines of tables that dpkg.py, users.py and alternatives.py write


def is_joined(effect: Join, path: str) -> bool:
    """Whether the package file at ``path`` is one of those that ``effect`` joins."""
    parent, _, name = path.rpartition("/")
    return parent == effect.directory and name.endswith(effect.ending)
