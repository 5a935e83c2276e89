"""What the Python resolver is asked for, and what of the declaration it can never give. Pure.

A list that ``pip freeze`` printed names more than an index has: builds with a local version, packages that
the distribution installed, versions that exist as source only. Each is dealt with as the declaration says, and each
deviation becomes a line of the lock: nothing is replaced quietly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.errors import SpecError
from envbuilder.lock.model import Substitution, Wheel
from envbuilder.spec.model import EnvSpec, Replacement

#: Python packages that Debian and Ubuntu install for themselves and that are on no index, or there only as a namesake
#: or as source that wants the system's libraries: distribution name -> the Debian package that has it.
DISTRIBUTION = {
    "cloud-init": "cloud-init",
    "command-not-found": "command-not-found",
    "dbus-python": "python3-dbus",
    "distro-info": "python3-distro-info",
    "language-selector": "language-selector-common",
    "launchpadlib": "python3-launchpadlib",
    "lazr-restfulclient": "python3-lazr.restfulclient",
    "lazr-uri": "python3-lazr.uri",
    "pygobject": "python3-gi",
    "python-apt": "python3-apt",
    "python-debian": "python3-debian",
    "ssh-import-id": "ssh-import-id",
    "systemd-python": "python3-systemd",
    "ubuntu-advantage-tools": "ubuntu-pro-client",
    "ubuntu-drivers-common": "ubuntu-drivers-common",
    "ubuntu-pro-client": "ubuntu-pro-client",
    "ufw": "ufw",
    "unattended-upgrades": "unattended-upgrades",
    "wadllib": "python3-wadllib",
}
#: Packages whose versions one build of torch fixes: with another build of torch, its own are taken.
_FOLLOW_TORCH = re.compile(r"(?:nvidia-.+-cu[0-9]+|triton)\Z")


class NoLocalBuild(SpecError):
    """A pinned local version is on no index that this machine knows, and the public build was not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the resolver is asked.

    requires: PEP 508. constraints: limit versions, ask for nothing.
    wishes: versions by name that are taken where all else allows it.
    excluded: names that must not come, whoever asks for them. overrides: PEP 508 that replace what anyone asks of
    that name. sources: pattern of names -> the one role that they may come from.
    substitutions: what will not be as it was asked for, whatever the resolver says.
    """

    requires: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    substitutions: tuple[Substitution, ...] = ()

    def source_of(self, name: str) -> str | None:
        """The role that package ``name`` must come from; the most exact pattern wins. None when any will do."""
        fits = [pattern for pattern in self.sources if fnmatchcase(name, pattern)]
        return self.sources[max(fits, key=lambda pattern: ("*" not in pattern, len(pattern)))] if fits else None


def inheriting(spec: EnvSpec, parents: Sequence[EnvSpec]) -> EnvSpec:
    """``spec`` with the sources and replacements of ``parents``, the root first, where it says nothing else itself.

    What a parent keeps out, replaces or binds to an index would else come back with what its packages need.
    """
    sources: dict[str, str] = {}
    replacements: dict[str, Replacement] = {}
    for each in (*parents, spec):
        asked = {_name(requirement) for requirement in each.requires}
        replacements = {name: other for name, other in replacements.items() if name not in asked}
        replacements |= {other.name: other for other in each.replaced}
        own = each.sources
        sources = {name: role for name, role in sources.items() if not any(fnmatchcase(name, mine) for mine in own)}
        sources |= own
    return replace(spec, sources=sources, replaced=tuple(replacements[name] for name in sorted(replacements)))


def wanted(spec: EnvSpec, has_build: Callable[[str, str, str], str]) -> Wanted:
    """What ``spec`` wants of the resolver.

    has_build: why the index of a role has no wheel of that name and version for the image, "" when it has one.

    Raises:
        NoLocalBuild: see there.
    """
    replaced = {each.name: each for each in spec.replaced}
    requires = [each for each in spec.requires if _name(each) not in replaced]
    sources, wishes = dict(spec.sources), dict[str, str]()
    substitutions: list[Substitution] = []
    local, public = dict(spec.pins.local) if spec.pins else {}, spec.pins.public if spec.pins else False
    other_torch = ""
    for name, version in spec.pins.versions if spec.pins else ():
        label = Version(version).local
        if name in replaced:
            continue
        if name in DISTRIBUTION:
            reason = f"comes with the system (package {DISTRIBUTION[name]}), not from an index"
            substitutions.append(Substitution(name=name, wanted=version, got="", reason=reason))
            continue
        if label is None:
            requires.append(f"{name}=={version}")
            continue
        role = local.get(label)
        why = has_build(role, name, version) if role else f"pins.local names no index for +{label}"
        if role and not why:
            requires.append(f"{name}=={version}")
            sources.setdefault(name, role)
        elif public:
            requires.append(f"{name}=={Version(version).public}")
            other_torch = Version(version).public if name == "torch" else other_torch
            reason = f"public build: {why}"
            substitutions.append(Substitution(name=name, wanted=version, got=Version(version).public, reason=reason))
        else:
            raise NoLocalBuild(
                f"pins: {name}=={version}: {why}",
                hint=f"Configure that index, or set pins.public to take {name}=={Version(version).public}.",
            )
    if other_torch:
        loose = [pin for pin in requires if _FOLLOW_TORCH.match(pin.partition("==")[0]) and "==" in pin]
        wishes = dict(pin.split("==", 1) for pin in loose)
        requires = [name if (name := pin.partition("==")[0]) in wishes else pin for pin in requires]
    return Wanted(
        requires=tuple(sorted({*requires, *_instead(spec)})),
        constraints=spec.constraints,
        wishes=wishes,
        excluded=tuple(name for name, each in replaced.items() if _name(each.instead) != name),
        overrides=tuple(each.instead for name, each in replaced.items() if _name(each.instead) == name),
        sources=sources,
        substitutions=tuple(substitutions),
    )


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name) if requirement else ""


def _instead(spec: EnvSpec) -> tuple[str, ...]:
    """Replacements to ask for: all but those of a package's own name that only others ask for."""
    named = {name for name, _ in spec.pins.versions} if spec.pins else set()
    named |= {_name(requirement) for requirement in spec.requires}
    return tuple(
        each.instead
        for each in spec.replaced
        if each.instead and (each.name in named or _name(each.instead) != each.name)
    )


def substitutions(spec: EnvSpec, want: Wanted, wheels: Sequence[Wheel]) -> tuple[Substitution, ...]:
    """Everything of ``spec`` that ``wheels`` do not hold as it was asked for, sorted by name."""
    got = {wheel.name: wheel.version for wheel in wheels}
    pinned = dict(spec.pins.versions) if spec.pins else {}
    found = list(want.substitutions)
    for each in spec.replaced:
        other = _name(each.instead)
        here = f"{other} {got[other]}" if other and other != each.name and other in got else got.get(other, "")
        if here != pinned.get(each.name):
            found.append(Substitution(name=each.name, wanted=pinned.get(each.name, ""), got=here, reason=each.reason))
    for name, version in want.wishes.items():
        if got.get(name) != version:
            reason = "as the public build of torch needs it" if name in got else "the public build of torch needs none"
            found.append(Substitution(name=name, wanted=version, got=got.get(name, ""), reason=reason))
    return tuple(sorted(found, key=lambda each: each.name))
