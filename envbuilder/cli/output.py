"""What people and programs see: the result on stdout, everything else on stderr.

On a terminal long work draws a bar; elsewhere it writes a plain line when a stage begins,
every few seconds, and when it ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two plain progress lines.
_LINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """What a verb gives: ``text`` for people, ``value`` under ``--json``, and its exit status."""

    text: str
    value: Any
    exit_code: int = 0


class Meter(Protocol):
    """Progress of one stage: tell it how many bytes are done."""

    def advance(self, size: int, /) -> None: ...

    def total(self, size: int, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Output:
    """Where to write and how much; ``quiet`` leaves only errors and the result."""

    as_json: bool = False
    quiet: bool = False
    debug: bool = False

    def result(self, result: Result) -> None:
        """Write a verb's result to stdout."""
        text = json.dumps(result.value, indent=2, sort_keys=True) if self.as_json else result.text
        if text:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """One line for people on stderr."""
        if not self.quiet:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    @contextmanager
    def stage(self, what: str, total: int = 0) -> Iterator[Meter]:
        """A stage of long work that moves bytes; ``total`` may be told later."""
        if self.quiet:
            yield _Silent()
        elif sys.stderr.isatty():
            with _bars() as progress:
                yield _Bar(progress, progress.add_task(what, total=total or None, visible=False))
        else:
            lines = _Lines(what, total)
            yield lines
            lines.end()


def _bars() -> Progress:
    # Only who shows a bar pays for importing what draws it: a start does not.
    from rich import progress  # noqa: PLC0415  seldom needed
    from rich.console import Console  # noqa: PLC0415  seldom needed

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeElapsedColumn(),
    )
    return progress.Progress(*columns, console=Console(stderr=True), transient=False)


class _Silent:
    def advance(self, size: int, /) -> None:
        pass

    def total(self, size: int, /) -> None:
        pass


class _Bar:
    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task = progress, task

    def advance(self, size: int, /) -> None:
        # A stage that turns out to have nothing to do draws nothing.
        self._progress.update(self._task, advance=size, visible=True)

    def total(self, size: int, /) -> None:
        self._progress.update(self._task, total=size)


class _Lines:
    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._done = what, total, 0
        self._start = self._last = time.monotonic()
        self._ended = False

    def advance(self, size: int, /) -> None:
        self._done += size
        if self._done == self._total:
            self.end()
        elif time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            of = f" of {human_size(self._total)}" if self._total else ""
            sys.stderr.write(f"{self._what}: {human_size(self._done)}{of}\n")
            sys.stderr.flush()

    def total(self, size: int, /) -> None:
        self._total = size

    def end(self) -> None:
        """The last line: when all is done, which may be before the stage ends."""
        if self._done and not self._ended:
            self._ended = True
            seconds = time.monotonic() - self._start
            sys.stderr.write(f"{self._what}: {human_size(self._done)} in {seconds:.1f} s\n")
            sys.stderr.flush()


def human_size(size: int) -> str:
    """``size`` bytes in decimal units, as registries and networks count: ``3.3 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def table(rows: Sequence[Sequence[str]]) -> str:
    """``rows`` in aligned columns, the first row as head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def pairs(values: Mapping[str, str]) -> str:
    """``name  value`` lines, aligned."""
    width = max(map(len, values), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in values.items())
