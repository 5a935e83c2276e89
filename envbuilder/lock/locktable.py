"""The TOML of a lock, line by line out and key by key in; docs/formats/lock.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from envbuilder.digest import Digest
from envbuilder.errors import SpecError

_T = TypeVar("_T")
#: Bits of an integer: far above any count, far below the 4300 digits that Python prints at most.
_BITS = 1024


class InvalidLock(SpecError):
    """A lock file is not one that this version wrote: damaged, edited by hand or too new."""

    hint = "Restore the file from version control, or make it anew with 'envbuilder lock'."


def pairs(**values: object) -> list[str]:
    """``key = value`` lines."""
    return [f"{key} = {value_text(value)}" for key, value in values.items()]


def array(key: str, values: Iterable[str]) -> list[str]:
    """An array with a value a line."""
    return [f"{key} = [", *(f"    {value}," for value in values), "]"]


def inline(fields: Mapping[str, object]) -> str:
    """An inline table."""
    return "{ " + ", ".join(f"{key} = {value_text(value)}" for key, value in fields.items()) + " }"


def value_text(value: object) -> str:
    """``value`` as TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(map(value_text, value)) + "]"
    return '"' + str(value).translate(_ESCAPES) + '"'


#: TOML 1.0, "String": what a basic string must escape.
_ESCAPES = {ord('"'): '\\"', ord("\\"): "\\\\"} | {code: f"\\u{code:04x}" for code in [*range(32), 127]}


class LockTable:
    """A table whose keys are taken out one by one; what is left at the end is unknown."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        self.values, self.path = values, path

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        value = self.values.pop(key, default)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InvalidLock(f"{self.path}{key}: want {kind.__name__}, got {type(value).__name__}")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise InvalidLock(f"{self.path}{key}: want at most {_BITS} bits, got {value.bit_length()}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.take(key, list)
        if not all(isinstance(value, str) for value in values):
            raise InvalidLock(f"{self.path}{key}: want strings")
        return tuple(values)

    def digest(self, key: str) -> Digest:
        return Digest.parse(self.take(key, str))

    def sha256(self) -> Digest:
        return Digest.parse("sha256:" + self.take("sha256", str))

    def size(self) -> int:
        size = self.take("size", int)
        if size < 0:
            raise InvalidLock(f"{self.path}size: want 0 or more, got {size}")
        return size

    def table(self, key: str) -> LockTable:
        return LockTable(self.take(key, dict), f"{self.path}{key}.")

    def tables(self, key: str) -> list[LockTable]:
        values = self.take(key, list)
        if not all(isinstance(value, dict) for value in values):
            raise InvalidLock(f"{self.path}{key}: want tables")
        return [LockTable(value, f"{self.path}{key}[{at}].") for at, value in enumerate(values)]

    def end(self, value: _T) -> _T:
        if self.values:
            raise InvalidLock(f"{self.path}{next(iter(self.values))}: unknown key")
        return value
