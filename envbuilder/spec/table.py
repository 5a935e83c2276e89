"""One table of a declaration: keys are taken out one by one, and every problem is noted under its path. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from envbuilder.spec.words import our_word

_T = TypeVar("_T")


class Table:
    """One table of the document: takes keys out, notes problems under their path."""

    def __init__(self, values: Mapping[str, Any], path: str, problems: list[str]) -> None:
        self.values, self.path, self.problems = dict(values), path, problems
        self.known: list[str] = []

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def note(self, where: str, problem: str) -> None:
        self.problems.append(f"{where}: {problem}" if where else problem)

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        self.known.append(key)
        value = self.values.pop(key, default)
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        self.note(self.at(key), f"want {_KINDS[kind]}, got {kind_of(value)}")
        return default

    def text(self, key: str, pattern: re.Pattern[str] | None = None, what: str = "", *, required: bool = False) -> str:
        if required and key not in self.values:
            self.note(self.at(key), "missing")
        value = self.take(key, str, "")
        if value and pattern and not pattern.match(value):
            self.note(self.at(key), f"not {what}: {value!r}")
            return ""
        return value

    def texts(self, key: str, pattern: re.Pattern[str] | None = None, what: str = "") -> tuple[str, ...]:
        found = []
        for where, value in self.items(key):
            if not isinstance(value, str):
                self.note(where, f"want a string, got {kind_of(value)}")
            elif pattern and not pattern.match(value):
                self.note(where, f"not {what}: {value!r}")
            else:
                found.append(value)
        return tuple(found)

    def items(self, key: str) -> list[tuple[str, Any]]:
        return [(f"{self.at(key)}[{at}]", value) for at, value in enumerate(self.take(key, list, []))]

    def table(self, key: str) -> Table | None:
        if key not in self.values:
            self.known.append(key)
            return None
        return Table(self.take(key, dict, {}), self.at(key), self.problems)

    def finish(self) -> None:
        """Note every key that nobody took."""
        for key in self.values:
            said = our_word(self.path, key)
            if not said and (close := get_close_matches(key.replace("_", "-"), self.known, n=1)):
                said = f"did you mean {close[0]!r}?"
            self.note(self.at(key), f"unknown key; {said}" if said else "unknown key")


_KINDS: Mapping[type, str] = {str: "a string", list: "an array", dict: "a table", bool: "true or false"}


def kind_of(value: object) -> str:
    """What a message calls the type of ``value``."""
    names = {bool: "a boolean", int: "an integer", float: "a float"}
    return names.get(type(value)) or _KINDS.get(type(value)) or f"a {type(value).__name__}"
