"""Make a start-up trace: run commands in an image, note what they read, merge the runs."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from envbuilder.errors import HostError, SpecError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.mount import RECORDED_READ_AHEAD
from envbuilder.mount.run import RunOptions, RunReport, run_image
from envbuilder.mount.settings import MountSettings
from envbuilder.mount.startup.reads import recorded
from envbuilder.mount.startup.trace import Pages, Trace, merge, of_reads
from envbuilder.store.target import RangeTarget


class NothingToTrace(SpecError):
    """There is no command whose start could be recorded."""


class NotRecorded(HostError):
    """A command that should be recorded failed, or was not started lazily."""


def record(
    image: OpenImage,
    source: RangeTarget,
    settings: MountSettings,
    options: Sequence[RunOptions],
    *,
    runs: int,
    earlier: Trace | None = None,
    ran: Callable[[RunReport], None] = lambda _report: None,
) -> Trace:
    """The trace of starts of ``options``, one after the other, ``runs`` times; what ``earlier`` has comes first.

    ran: told of every run.

    Raises:
        NothingToTrace, NotRecorded; what ``run_image`` raises.
    """
    if not options:
        raise NothingToTrace(f"{image.root.digest}: want a command")
    seen: list[Sequence[Pages]] = [earlier.own] if earlier else []
    with tempfile.TemporaryDirectory(prefix="envbuilder-trace-") as folder:
        for _ in range(runs):
            for option in options:
                reads = Path(folder) / "reads"
                report = run_image(image, source, settings, replace(option, reads=reads))
                ran(report)
                if report.exit_code != 0 or "lazy" not in report.how:
                    raise NotRecorded(
                        f"trace: {shlex.join(option.command)}: exit status {report.exit_code}, started {report.how}",
                        hint="Name a command that ends well; `envbuilder doctor` says how images start here.",
                    )
                seen.append(tuple(of_reads(recorded(reads))))
                reads.unlink()
    commands = dict.fromkeys([*(earlier.commands if earlier else ()), *(shlex.join(each.command) for each in options)])
    return Trace(
        image=image.descriptor.digest,
        devices=tuple(layer.digest for layer in image.manifest.layers),
        commands=tuple(commands),
        runs=runs + (earlier.runs if earlier else 0),
        read_ahead=RECORDED_READ_AHEAD,
        ranges=merge(seen),
    )
