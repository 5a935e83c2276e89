"""What all mounts of a node have done since it was booted: counters that outlive their mounts.

    STATE/totals.json    sums over mounts that ended, and the ids of the last ones, so that none counts twice

A mount is added when its folder is removed, by whoever removes it; killed in between, it is added, and not again when
the folder is removed for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.mount.counters import Snapshot
from envbuilder.store.files import exclusive

#: Ids that are remembered: of far more mounts than end at a time.
_KEPT = 1000


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
        return Totals(mounts=self.mounts + 1, counters=add(self.counters, counters), ids=(*self.ids, id_)[-_KEPT:])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"mounts": self.mounts, "counters": self.counters.to_json(), "ids": list(self.ids)}


def add(one: Snapshot, two: Snapshot) -> Snapshot:
    """The sum of both."""
    other = two.to_json()
    return Snapshot(**{name: value + other[name] for name, value in one.to_json().items()})


def read_totals(state_dir: Path) -> Totals:
    """The totals of mounts that ended; zeros when there are none, or none that can be read."""
    try:
        value: Mapping[str, Any] = json.loads((state_dir / "totals.json").read_bytes())
        known = Snapshot().to_json()
        counters = {name: int(count) for name, count in value["counters"].items() if name in known}
        return Totals(mounts=int(value["mounts"]), counters=Snapshot(**counters), ids=tuple(map(str, value["ids"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Totals()


def add_to_totals(state_dir: Path, id_: str, counters: Snapshot) -> None:
    """Count a mount that ended.

    Raises:
        OSError, HostError: the state directory is full or gone.
    """
    with exclusive(state_dir / "totals.lock"):
        before = read_totals(state_dir)
        after = before.plus(id_, counters)
        if after is not before:
            temporary = state_dir / ".totals.json"
            temporary.write_text(json.dumps(after.to_json()))
            temporary.replace(state_dir / "totals.json")
