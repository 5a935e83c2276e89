"""``envbuilder trace ENV|REF [-- COMMAND...]``: record what a start reads, so that the next ones fetch it first."""

from __future__ import annotations

import shlex
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import click

from envbuilder.cli.adopted import take_over
from envbuilder.cli.app import App, common
from envbuilder.cli.command_last import CommandLast
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size
from envbuilder.cli.project import fresh_locks
from envbuilder.cli.targets import Source, host_platform_of, open_source, writable
from envbuilder.cli.trust import check_trust
from envbuilder.image.inspect import open_image
from envbuilder.layer.build import default_jobs
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.foreign.based import proved_layers
from envbuilder.mount.mount import require_root
from envbuilder.mount.run import RunOptions
from envbuilder.mount.startup.hot import page_root
from envbuilder.mount.startup.hotbuild import NoPageTree, build_bundle, is_of_use
from envbuilder.mount.startup.traces import attach_trace, find_trace
from envbuilder.mount.startup.tracing import NothingToTrace, record
from envbuilder.oci.reference import EnvironmentName

#: What a third run reads and two did not is next to nothing (docs/decisions/0007).
_RUNS = 2


@click.command(
    name="trace",
    cls=CommandLast,
    epilog="Example: envbuilder trace ai -- python3 train.py --help",
)
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[[--] COMMAND...]")
@click.option("--runs", type=click.IntRange(1, 20), default=None, help=f"Starts that are merged (default: {_RUNS}).")
@click.option("--add", is_flag=True, help="Keep what the image's trace has already.")
@click.option("--from", "donor", metavar="REF", default="", help="Take over the record of an image that shares layers.")
@click.option("--no-bundle", is_flag=True, help="Only the list of pages; starts then fetch whole chunks.")
@click.option("--dry-run", is_flag=True, help="Say what would be recorded, start nothing.")
@common
def command(
    app: App,
    reference: str,
    words: tuple[str, ...],
    runs: int | None,
    add: bool,
    donor: str,
    no_bundle: bool,
    dry_run: bool,
) -> Result:
    """Record what COMMAND reads at its start, and store it beside the image REF. Prints the digest of the record.

    Without COMMAND the commands in [start] of an environment are recorded. Every later start fetches these
    pages first, as one stream. The image and its digest stay as they are.

    With --from nothing is started, and no root needed: the record of another image serves this one as far as they have
    the same layers. `build` does that by itself for an image that has none, from its parent or the version before.
    """
    begun_s = time.monotonic()
    if donor and (words or runs or add or no_bundle):
        raise click.UsageError("--from takes a record as it is: without COMMAND, --runs, --add and --no-bundle")
    runs = runs or _RUNS
    source = open_source(app, reference)
    image = open_image(source.target, source.what, host_platform_of())
    if donor:
        return take_over(app, source, image, donor, dry_run=dry_run)
    check_trust(app, source)
    commands = (words,) if words else _start_commands(app, source)
    shown = [shlex.join(each) for each in commands]
    value: dict[str, object] = {"pinned": source.pinned, "commands": shown, "runs": runs}
    if dry_run:
        return Result("\n".join(f"would record {each}" for each in shown), value)
    require_root()
    target = writable(app, source)
    found = find_trace(source.target, image) if add else None
    # What comes out of the commands is not our result.
    options = [RunOptions(command=each, quiet=True) for each in commands]
    settings = replace(app.mount_settings(), background=False)
    with app.output.stage(f"trace {reference}"):
        trace = record(image, source.target, settings, options, runs=runs, earlier=found.trace if found else None)
    with tempfile.TemporaryDirectory(prefix="trace-", dir=_beside(settings.cache_dir)) as folder:
        bundle: Path | None = Path(folder) / "bundle"
        if no_bundle:
            bundle = None
        elif image.lazy and not is_of_use(trace, image.manifest.layers, source.target):
            app.output.note("no hot bundle: starts that read most of an image pull it whole, in the order of the trace")
            bundle = None
        else:
            layers = image.manifest.layers if image.lazy else proved_layers(image.manifest, source.target)
            try:
                with app.output.stage(f"bundle of {human_size(trace.pages * PAGE_SIZE)}"):
                    # What others laid over an image of ours is mostly pulled before a start: it needs no foresight.
                    wanted = trace if image.lazy else trace.provable([page_root(layer) for layer in layers])
                    trace = build_bundle(wanted, layers, source.target, Path(folder) / "bundle", jobs=default_jobs())
            except NoPageTree as error:
                app.output.note(f"no hot bundle: {error}")
                bundle = None
        size = bundle.stat().st_size if bundle else 0
        what = attach_trace(target, image, trace, bundle, made_at_s=int(time.time()))
    app.output.note(
        f"{len(trace.ranges)} ranges, {human_size(trace.pages * PAGE_SIZE)} of pages, bundle {human_size(size)}"
    )
    value |= {
        "digest": str(what.digest),
        "ranges": len(trace.ranges),
        "page_bytes": trace.pages * PAGE_SIZE,
        "bundle_bytes": size,
        "seconds": round(time.monotonic() - begun_s, 3),
    }
    return Result(str(what.digest), value)


def _start_commands(app: App, source: Source) -> tuple[tuple[str, ...], ...]:
    found: tuple[tuple[str, ...], ...] = ()
    if isinstance(source.reference, EnvironmentName):
        found = fresh_locks(app.need_project(), source.reference.name, host_platform_of())[-1].start
    if not found:
        raise NothingToTrace(
            f"{source.pinned}: no command to record",
            hint="Write the command after --, or name an environment whose env.toml has [start].",
        )
    return found


def _beside(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
