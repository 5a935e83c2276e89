"""Which artefact puts what at which path, and where two of them cannot both have their way.

Only paths and digests are compared, so it costs no data and can run before anything is built.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envbuilder.digest import Digest
from envbuilder.errors import SpecErrors

#: Conflicts that one message lists; the rest is counted.
_SHOWN = 20


class Conflict(SpecErrors):
    """Two packages put different files at one path, or one a file where another has a directory."""

    def __init__(self, problems: list[str]) -> None:
        shown = problems[:_SHOWN]
        if len(problems) > _SHOWN:
            shown.append(f"and {len(problems) - _SHOWN} more")
        hint = "Leave one of the packages out, or the file of one of them: [leave-out] in env.toml, as RECORD lists it."
        super().__init__("packages", shown, hint=hint)


@dataclass(frozen=True, slots=True)
class Claim:
    """What an artefact puts at a path: digest of the bytes, and permission bits.

    made_from: path of what it is compiled from; where that is a conflict, this one is not another.
    """

    digest: Digest
    mode: int
    made_from: str = field(default="", compare=False)


def check_conflicts(claims: Iterable[tuple[str, Mapping[str, Claim]]]) -> None:
    """Check that the artefacts, ``(name, what it puts at each path)``, can lie in one tree.

    Equal bytes with an equal mode at one path are no conflict.

    Raises:
        Conflict: names every path and both packages.
    """
    owners: dict[str, tuple[str, Claim]] = {}
    different: dict[str, list[tuple[Claim, str]]] = {}
    for name, paths in claims:
        for path, claim in paths.items():
            owner, other = owners.setdefault(path, (name, claim))
            if other != claim:
                different.setdefault(path, []).append((claim, f"{owner} and {name} have different files there"))
    problems = [
        f"{path}: {text}"
        for path, found in different.items()
        for claim, text in found
        if claim.made_from not in different
    ]
    parents: set[str] = set()
    for path in owners:
        parent = path.rpartition("/")[0]
        while parent and parent not in parents:
            parents.add(parent)
            if parent in owners:
                problems.append(f"{parent}: a file in {owners[parent][0]}, a directory in {owners[path][0]}")
            parent = parent.rpartition("/")[0]
    if problems:
        raise Conflict(sorted(problems))


def twins(claims: Iterable[tuple[str, Mapping[str, Claim]]]) -> tuple[str, ...]:
    """A line for each two files of different artefacts whose paths differ only in case or Unicode form, sorted.

    They are two files in an image and no conflict; where file systems fold names, one hides the other.
    """
    owners: dict[str, tuple[str, str]] = {}
    found = set()
    for name, paths in claims:
        for path, claim in paths.items():
            folded = path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())
            owner, other = owners.setdefault(folded, (name, path))
            if other != path and owner != name and not claim.made_from:
                found.add(f"{other} of {owner}, {path} of {name}")
    return tuple(sorted(found))
