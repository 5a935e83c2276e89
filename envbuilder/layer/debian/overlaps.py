"""Which packages of a set ship one path: dpkg would refuse, let one replace the other's file, or divert it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from envbuilder.errors import SpecError
from envbuilder.layer.deb import check_place, merged
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.effects import Divert


class SharedPath(SpecError):
    """Two packages ship different files at one path, so the higher layer would win by chance."""

    hint = "Leave one of the packages out."


class DivertedPath(SpecError):
    """A package moves a file of another one out of its way (dpkg-divert(1))."""

    hint = "Leave one of the packages out."


def check_diversions(controls: Iterable[Control], diversions: Mapping[str, Iterable[Divert]]) -> None:
    """Check that no package has a file that another one diverts: dpkg would put it elsewhere, and we do not.

    diversions: by package. The guards of the move to a merged /usr divert paths that no package has any more.

    Raises:
        DivertedPath: every path and both packages.
    """
    diverted = {each.path: package for package, items in diversions.items() for each in items}
    problems = [
        f"{path}: {diverted[path]} diverts the file of {control.package}"
        for control in controls
        for path in sorted({f"/{name}" for name in control.md5sums} | {*control.conffiles})
        if diverted.get(path, control.package) != control.package
    ]
    if problems:
        raise DivertedPath("\n".join(sorted(problems)))


def check_overlaps(controls: Iterable[Control]) -> None:
    """Check that no two packages ship different files at one path, by the checksums that they carry.

    ``Replaces`` is no excuse: which file wins is decided by the order of layers, not of installation.
    Packages' symbolic links have no checksums, and some packages carry none: image/overlaps.py checks layers for those.

    Raises:
        SharedPath: every path and both packages. InPrefix: one of them reaches into where Python packages go.
    """
    owners: dict[str, tuple[str, str]] = {}
    problems = []
    for control in controls:
        files = [(merged(path), md5) for path, md5 in control.md5sums.items()]
        files += [(merged(path.lstrip("/")), f"conffile of {control.package}") for path in control.conffiles]
        for path, md5 in files:
            check_place(control.package, path)
            owner, other = owners.setdefault(path, (control.package, md5))
            if other != md5 and owner != control.package:  # a conffile may stand in md5sums too (binutils)
                problems.append(f"/{path}: both {owner} and {control.package} have it, with different bytes")
    if problems:
        raise SharedPath("\n".join(sorted(problems)))
