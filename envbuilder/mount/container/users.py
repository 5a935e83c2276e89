"""The user of an image's config, as numbers: names are those of the image's own /etc/passwd and /etc/group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import SpecError
from envbuilder.mount.unpack.inroot import read_in

#: Bytes of a passwd or group file that are looked at.
_MAX_FILE = 4 << 20
_MAX_ID, _MAX_DIGITS = 0xFFFFFFFE, 10


class UnknownUser(SpecError):
    """The image has no such user or group."""

    hint = "Name a user of the image, or numbers (UID:GID)."


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUser:
    """Who the process is. groups: supplementary ones. home: "/" when the image does not say."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = "/"


def find_user(root: Path, text: str) -> ContainerUser:
    """The user ``text`` (OCI config "User": name or number, optionally ``:group``) of the tree at ``root``.

    Raises:
        UnknownUser: a name that the image does not have.
    """
    wanted, _, wanted_group = text.partition(":")
    users = list(_lines(read_in(root, "etc/passwd", _MAX_FILE), 6))
    groups = list(_lines(read_in(root, "etc/group", _MAX_FILE), 3))
    wanted = wanted or "0"
    # A number is a number even if a user has it as name; Docker and runc do the same.
    found = next((line for line in users if line[0] == wanted or (wanted.isdecimal() and line[2] == wanted)), None)
    if found is None and not wanted.isdecimal():
        raise UnknownUser(f"user {wanted[:80]!r}: not in the image's /etc/passwd")
    uid = _number(wanted if wanted.isdecimal() else found[2] if found else "", text)
    gid = _number(found[3], text) if found else 0
    extra: tuple[int, ...] = ()
    if wanted_group:
        group = next((line for line in groups if line[0] == wanted_group), None)
        if group is None and not wanted_group.isdecimal():
            raise UnknownUser(f"group {wanted_group[:80]!r}: not in the image's /etc/group")
        gid = _number(wanted_group if wanted_group.isdecimal() else group[2] if group else "", text)
    elif found:
        extra = tuple(_number(line[2], text) for line in groups if found[0] in line[3].split(","))
    return ContainerUser(uid=uid, gid=gid, groups=extra, home=(found[5] if found else "") or "/")


def _lines(data: bytes, least: int) -> Iterator[list[str]]:
    for line in data.decode(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) >= least and not line.startswith("#"):
            yield [*fields, "", ""]


def _number(text: str, user: str) -> int:
    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) > _MAX_ID:
        raise UnknownUser(f"user {user[:80]!r}: want a number from 0 to {_MAX_ID}, got {text[:40]!r}")
    return int(text)
