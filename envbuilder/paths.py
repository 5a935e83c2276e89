"""The only code that turns names from archives into paths.

A name inside a wheel, a .deb, a tar or an index is hostile until it went through here.
"""

from __future__ import annotations

import re
from pathlib import Path

from envbuilder.errors import IntegrityError

#: Linux PATH_MAX and NAME_MAX in bytes (limits.h).
PATH_MAX, NAME_MAX = 4096, 255
#: Nearly every name: printable ASCII and canonical already. Three times as fast as taking it apart.
_CANONICAL = re.compile(r"(?!\.{1,2}(?:/|\Z))[ -.0-~]{1,255}(?:/(?!\.{1,2}(?:/|\Z))[ -.0-~]{1,255})*\Z")


class UnsafePath(IntegrityError):
    """A name is absolute, climbs with '..', is empty, too long or holds a NUL."""


def entry_path(name: str, *, source: str) -> str:
    """``name`` as a tree path: relative, '/'-separated, without '.', '..' or empty parts.

    A leading './' or '/' and a trailing '/' are dropped, as every tar reader does.

    Raises:
        UnsafePath: what is left is empty, climbs, or is no valid Linux path.
    """
    if len(name) < PATH_MAX and _CANONICAL.match(name):
        return name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in name:
        raise UnsafePath(f"{source}: not a path inside the tree: {name[:200]!r}")
    path = "/".join(parts)
    if len(path.encode("utf-8", "surrogateescape")) >= PATH_MAX or any(
        len(part.encode("utf-8", "surrogateescape")) > NAME_MAX for part in parts
    ):
        raise UnsafePath(f"{source}: path too long: {name[:200]!r}")
    return path


def file_name(name: str, *, source: str) -> str:
    """``name`` if it is one path component that can be a file of ours.

    Raises:
        UnsafePath: it has a separator, is '.' or '..', starts with '.', or is empty.
    """
    if not name or "/" in name or "\0" in name or name.startswith(".") or len(name.encode()) > NAME_MAX:
        raise UnsafePath(f"{source}: not a file name: {name[:200]!r}")
    return name


def join_below(root: Path, path: str, *, source: str) -> Path:
    """``root / path`` for a tree path; symbolic links are not followed or resolved.

    Raises:
        UnsafePath: ``path`` does not name something below ``root``.
    """
    return root / entry_path(path, source=source)


def resolve_link(path: str, target: str) -> str | None:
    """Where the symbolic link at tree path ``path`` points, as a tree path; None if outside the tree."""
    parts = [] if target.startswith("/") else path.split("/")[:-1]
    for part in target.split("/"):
        if part in ("", "."):
            continue
        if part == "..":
            if not parts:
                return None
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
