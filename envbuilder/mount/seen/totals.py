"""What all mounts of a node have done since it was booted: counters that outlive their mounts.

The file is ended.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.mount.counters import Snapshot
from envbuilder.mount.seen.ended import KEPT, count_ended, read_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """``mounts`` that ended, and what they did together."""

    mounts: int = 0
    counters: Snapshot = field(default_factory=Snapshot)
    ids: tuple[str, ...] = ()

    def plus(self, id_: str, counters: Snapshot) -> Totals:
        """With one more mount that ended; the same when it is known."""
        if id_ in self.ids:
            return self
        return Totals(mounts=self.mounts + 1, counters=add(self.counters, counters), ids=(*self.ids, id_)[-KEPT:])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"mounts": self.mounts, "counters": self.counters.to_json(), "ids": list(self.ids)}


def add(one: Snapshot, two: Snapshot) -> Snapshot:
    """The sum of both."""
    other = two.to_json()
    return Snapshot(**{name: value + other[name] for name, value in one.to_json().items()})


def read_totals(state_dir: Path) -> Totals:
    """The totals of mounts that ended; zeros when there are none, or none that can be read."""
    mounts, counters, ids = read_ended(state_dir)
    known = Snapshot().to_json()
    return Totals(
        mounts=mounts,
        counters=Snapshot(**{name: count for name, count in counters.items() if name in known}),
        ids=ids,
    )


def add_to_totals(state_dir: Path, id_: str, counters: Snapshot) -> None:
    """Count a mount that ended.

    Raises:
        OSError: the state directory is full or gone.
    """
    count_ended(state_dir, id_, counters.to_json())
