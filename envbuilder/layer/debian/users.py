"""etc/passwd, group, shadow and gshadow: base-passwd's master files and the accounts that packages create.

Source: passwd(5), group(5), shadow(5); allocation as adduser(8) does with Debian's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.effects import Account
from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, file

#: First id of system accounts, and the first that is not one (adduser.conf FIRST_SYSTEM_UID, FIRST_UID).
_FIRST_SYSTEM, _FIRST_USER = 100, 1000
_MASTER = "usr/share/base-passwd"
#: gid of group shadow, given by the Debian project (Policy 9.2.2).
_SHADOW_GID = 42


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """The lines of passwd and group, and the ids by name."""

    passwd: tuple[tuple[str, ...], ...]
    group: tuple[tuple[str, ...], ...]

    @property
    def uids(self) -> dict[str, int]:
        return {line[0]: int(line[2]) for line in self.passwd}

    @property
    def gids(self) -> dict[str, int]:
        return {line[0]: int(line[2]) for line in self.group}


def wanted(path: str) -> bool:
    """Whether the accounts are made from the package file at ``path``."""
    return path in (f"{_MASTER}/passwd.master", f"{_MASTER}/group.master")


def accounts(system: System, created: Iterable[Account]) -> Accounts:
    """The accounts of base-passwd, then ``created`` in order, with the lowest free system ids.

    Raises:
        BadDeb: no base-passwd, or its files are malformed.
    """
    passwd = _table(system, "passwd.master", 7)
    group = _table(system, "group.master", 4)
    uids, gids = {int(line[2]) for line in passwd}, {int(line[2]) for line in group}
    for account in created:
        if any(line[0] == account.name for line in (*group, *passwd)):
            continue
        if account.group:
            gid = next(int(line[2]) for line in group if line[0] == account.group)
        else:
            gid = _free(gids)
            group.append((account.name, "*", str(gid), ""))
        if account.user:
            ids = (str(_free(uids)), str(gid))
            passwd.append((account.name, "*", *ids, account.comment, account.home, account.shell))
    return Accounts(passwd=tuple(passwd), group=tuple(group))


def account_entries(known: Accounts, *, shadow: bool) -> Iterator[Entry]:
    """The files; with ``shadow`` passwords lie in files of their own, as package ``passwd`` sets it up.

    No account has a password. sp_lstchg is day 1, for a date would change the bytes every day.
    """
    mark = "x" if shadow else "*"
    yield _file("etc/passwd", [(line[0], mark, *line[2:]) for line in known.passwd])
    yield _file("etc/group", [(line[0], mark, *line[2:]) for line in known.group])
    yield file("etc/subuid", b"")
    yield file("etc/subgid", b"")
    if shadow:
        rows = [(line[0], "*", "1", "0", "99999", "7", "", "", "") for line in known.passwd]
        yield replace(_file("etc/shadow", rows, 0o640), gid=_SHADOW_GID)
        groups = [(line[0], "*", "", line[3]) for line in known.group]
        yield replace(_file("etc/gshadow", groups, 0o640), gid=_SHADOW_GID)


def _table(system: System, name: str, columns: int) -> list[tuple[str, ...]]:
    lines = [tuple(line.split(":")) for line in system.read(f"{_MASTER}/{name}").decode().splitlines()]
    for line in lines:
        if len(line) != columns or not line[2].isdigit():
            raise BadDeb(f"base-passwd: {name}: want {columns} columns, got {':'.join(line)[:100]!r}")
    return lines


def _free(ids: set[int]) -> int:
    for number in range(_FIRST_SYSTEM, _FIRST_USER):
        if number not in ids:
            ids.add(number)
            return number
    raise BadDeb(f"accounts: no free id from {_FIRST_SYSTEM} to {_FIRST_USER - 1}")


def _file(path: str, rows: Iterable[tuple[str, ...]], mode: int = 0o644) -> Entry:
    return file(path, "".join(":".join(row) + "\n" for row in rows).encode(), mode)
