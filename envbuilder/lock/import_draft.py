"""What is taken from files that are imported, as it is found: each requirement once, and what has no place."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envbuilder.errors import SpecError
from envbuilder.lock.import_words import without_secrets
from envbuilder.spec.packages import is_optional

#: Characters of what is left out that are shown.
_SHOWN = 200
#: Why what only an extra or a group asks for is left out.
OPTIONAL = "only of an extra or a dependency group: add it to requires if the image is to have it"


class CannotImport(SpecError):
    """A file is none of those that can be imported, or is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a file asks for.

    requires, constraints: PEP 508, sorted. python: "3.12", or "" when it does not say. left_out: (what, why).
    """

    requires: tuple[str, ...]
    constraints: tuple[str, ...]
    python: str = ""
    left_out: tuple[tuple[str, str], ...] = ()


class Draft:
    """What was found so far, each requirement once."""

    def __init__(self) -> None:
        self.requires: dict[str, None] = {}
        self.pins: dict[str, dict[str, None]] = {}
        self.left_out: list[tuple[str, str]] = []

    def require(self, text: str) -> None:
        requirement = self._parsed(text)
        if requirement and not self._leaves_optional(requirement):
            self.requires[str(requirement)] = None

    def pin(self, name: str, version: str, marker: str = "") -> None:
        self.limit(f"{name}=={version}" + (f" ; {marker}" if marker else ""))

    def limit(self, text: str) -> None:
        requirement = self._parsed(text)
        if requirement and not self._leaves_optional(requirement):
            self.pins.setdefault(requirement.name, {})[str(requirement)] = None

    def leave(self, what: str, why: str) -> None:
        # It is printed and becomes a comment of the declaration, which is committed.
        self.left_out.append((without_secrets(what)[:_SHOWN], why))

    def _leaves_optional(self, requirement: Requirement) -> bool:
        """Nothing in a declaration is asked for as an extra of something: such a marker would never hold."""
        if requirement.marker is None or not is_optional(str(requirement.marker)):
            return False
        self.leave(requirement.name, OPTIONAL)
        return True

    def _parsed(self, text: str) -> Requirement | None:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            self.leave(text, "not a PEP 508 requirement")
            return None
        if requirement.url:
            self.leave(requirement.name, "comes from a URL: give a wheel of it an index")
            return None
        requirement.name = canonicalize_name(requirement.name)
        return requirement

    def done(self, python: str) -> Imported:
        constraints = []
        for name, texts in sorted(self.pins.items()):
            if len(texts) > 1 and any(";" not in text for text in texts):
                self.leave(name, f"has several versions: {', '.join(texts)}")
                continue
            constraints += sorted(texts)
        return Imported(
            requires=tuple(sorted(self.requires)),
            constraints=tuple(constraints),
            python=python,
            left_out=tuple(sorted(set(self.left_out))),
        )


def add_requirement(text: str, draft: Draft) -> None:
    """``name==1`` is a pin and a requirement without its version; anything else a requirement."""
    pin = re.fullmatch(r"([A-Za-z0-9._-]+)(\[[^]]*\])?\s*===?\s*([^*;\s,]+)\s*(?:;\s*(.+))?", text)
    if pin:
        name, extras, version, marker = pin.groups()
        draft.pin(name, version, marker or "")
        draft.require(name + (extras or "") + (f" ; {marker}" if marker else ""))
    else:
        draft.require(text)
