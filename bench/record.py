"""What a scenario gives, and how it is kept: one JSON line in ``results/<scenario>.jsonl`` and a table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A number that was promised. ``got`` holds when ``got <= limit`` (``at_least``: ``>=``)."""

    name: str
    limit: float
    got: float
    at_least: bool = False

    @property
    def held(self) -> bool:
        return self.got >= self.limit if self.at_least else self.got <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Numbers of one run: a column for us and for each peer, by the same names in each.

    ratios: peer divided by ours, or what the name says. notes: what a reader must know to compare.
    """

    columns: Mapping[str, Mapping[str, float | str]]
    ratios: Mapping[str, float] = field(default_factory=dict)
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()


def machine() -> dict[str, Any]:
    """CPU model, cores, memory and kernel of this machine; nothing that names it."""
    cpu = next((line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = next(int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the tree, with ``+`` when tracked files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(PROJECT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (
        "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    )


def keep(scenario: str, outcome: Outcome, *, env: str, exclusive: bool) -> Path:
    """Append the line of this run; the file it went to."""
    file = HERE / "results" / f"{scenario}.jsonl"
    file.parent.mkdir(exist_ok=True)
    line = {
        "scenario": scenario,
        "env": env,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "exclusive": exclusive,
        "command": "python bench/run.py " + " ".join(sys.argv[1:]),
        "columns": outcome.columns,
        "ratios": outcome.ratios,
        "targets": [{"name": t.name, "limit": t.limit, "got": t.got, "held": t.held} for t in outcome.targets],
        "notes": list(outcome.notes),
    }
    with file.open("a") as out:
        out.write(json.dumps(line, sort_keys=True) + "\n")
    return file


def show(scenario: str, outcome: Outcome, *, env: str) -> str:
    """The table of this run: a row a number, a column a contender."""
    names = list(dict.fromkeys(key for column in outcome.columns.values() for key in column))
    rows = [[f"{scenario}:{env}", *outcome.columns]]
    rows += [[name, *(_cell(column.get(name, "-")) for column in outcome.columns.values())] for name in names]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    text = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    text += [f"ratio   {name}: {value:.3g}" for name, value in outcome.ratios.items()]
    for target in outcome.targets:
        want = f"{'>=' if target.at_least else '<='} {target.limit:g}"
        text.append(f"{'held  ' if target.held else 'MISSED'}  {target.name}: want {want}, got {target.got:.4g}")
    text += [f"note    {note}" for note in outcome.notes]
    return "\n".join(text)


def _cell(value: float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()
