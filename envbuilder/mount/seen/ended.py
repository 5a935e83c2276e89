"""Sums over the mounts of a node that ended.

    STATE/totals.json    the sums, and the ids of the last mounts, so that none counts twice
    STATE/totals.lock    flock held while it is written

A mount is added when its folder is removed, by whoever removes it; killed in between, it is added, and not again when
the folder is removed for good. Every start ends here, so it imports little.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path

#: Ids that are remembered: of far more mounts than end at a time.
KEPT = 1000


def read_ended(state_dir: Path) -> tuple[int, dict[str, int], tuple[str, ...]]:
    """How many mounts ended, the sums of their counters by name, the ids of the last; nothing if that is unreadable."""
    try:
        value = json.loads((state_dir / "totals.json").read_bytes())
        counters = {str(name): int(count) for name, count in value["counters"].items()}
        return int(value["mounts"]), counters, tuple(map(str, value["ids"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0, {}, ()


def count_ended(state_dir: Path, id_: str, counters: Mapping[str, int]) -> None:
    """Count the mount ``id_``, once.

    Raises:
        OSError: the state directory is full or gone.
    """
    lock = os.open(state_dir / "totals.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mounts, sums, ids = read_ended(state_dir)
        if id_ in ids:
            return
        for name, count in counters.items():
            sums[name] = sums.get(name, 0) + count
        temporary = state_dir / ".totals.json"
        temporary.write_text(json.dumps({"mounts": mounts + 1, "counters": sums, "ids": [*ids, id_][-KEPT:]}))
        temporary.replace(state_dir / "totals.json")
    finally:
        os.close(lock)
