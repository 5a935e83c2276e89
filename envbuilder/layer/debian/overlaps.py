"""Which packages of a set ship one path: dpkg would refuse, or let one replace the other's file."""

from __future__ import annotations

from collections.abc import Iterable

from envbuilder.errors import SpecError
from envbuilder.layer.deb import merged
from envbuilder.layer.debian.control import Control


class SharedPath(SpecError):
    """Two packages ship different files at one path, so the higher layer would win by chance."""

    hint = "Leave one of the packages out."


def check_overlaps(controls: Iterable[Control]) -> None:
    """Check that no two packages ship different files at one path, by the checksums that they carry.

    ``Replaces`` is no excuse: which file wins is decided by the order of layers, not of installation.
    Packages' symbolic links have no checksums; the merged tree of the layers is checked for those.

    Raises:
        SharedPath: every path and both packages.
    """
    owners: dict[str, tuple[str, str]] = {}
    problems = []
    for control in controls:
        files = [(merged(path), md5) for path, md5 in control.md5sums.items()]
        files += [(merged(path.lstrip("/")), f"conffile of {control.package}") for path in control.conffiles]
        for path, md5 in files:
            owner, other = owners.setdefault(path, (control.package, md5))
            if other != md5 and owner != control.package:  # a conffile may stand in md5sums too (binutils)
                problems.append(f"/{path}: both {owner} and {control.package} have it, with different bytes")
    if problems:
        raise SharedPath("\n".join(sorted(problems)))
