"""``envbuilder run REF [[--] COMMAND...]``: start a command in an image, lazily."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal, cast

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.command_last import CommandLast
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.cli.trust import check_trust
from envbuilder.cli.warm import asked_for
from envbuilder.mount.host.rootless import become_root_of_our_own
from envbuilder.mount.launch import forked
from envbuilder.store.begun import begun
from envbuilder.store.documents import Documents
from envbuilder.store.files import write_whole

#: Seconds that a thread may go on while others want to: one that reads from the network asks after each piece, and
#: would get it after Python's 5 ms while another imports or parses. The keeper is forked before, and keeps those.
_TAKE_TURNS_S = 0.0005


@click.command(
    name="run",
    cls=CommandLast,
    epilog='Example: envbuilder run ai -- python3 -c "import torch; print(torch.__version__)"',
)
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[[--] COMMAND...]")
@click.option(
    "--report",
    "reports",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write how the start went: a picture if FILE ends in .svg, else JSON.",
)
@click.option("--full", is_flag=True, help="Pull everything first.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Set a variable of the command.")
@click.option("--workdir", default="", metavar="DIR", help="Working directory (default: the image's).")
@click.option("--user", default="", metavar="USER", help="User or uid[:gid] (default: the image's).")
@click.option(
    "--gpus", type=click.Choice(["auto", "all", "none"]), default="auto", show_default=True, help="GPUs by CDI."
)
@click.option("--dry-run", is_flag=True, help="Look the image up and check it, start nothing.")
@common
def command(
    app: App,
    reference: str,
    words: tuple[str, ...],
    reports: tuple[Path, ...],
    full: bool,
    variables: tuple[str, ...],
    workdir: str,
    user: str,
    gpus: str,
    dry_run: bool,
) -> Result:
    """Start COMMAND, or the image's own, in the image REF; what it reads is fetched as it reads.

    stdin, stdout, stderr, the terminal, signals and the exit status are the command's own. What it writes
    to the root file system is thrown away. GPUs are there when this host has a CDI specification for them.
    Nothing stays mounted, whatever happens.
    """
    begun_s = _process_started_s()
    for report in reports:
        if not report.absolute().parent.is_dir():
            raise click.BadParameter(f"{report}: no such folder", param_hint="--report")
    settings = app.mount_settings()
    asked = asked_for(sys.argv[1:], os.environ)
    keeper = None
    if not dry_run:
        become_root_of_our_own()
        keeper = forked()
    # From here on there are threads: what needs the network waits while the rest is imported.
    sys.setswitchinterval(_TAKE_TURNS_S)
    looked_up = begun(lambda: open_source(app, reference, starting=True), "lookup")
    from envbuilder.image.inspect import open_image  # noqa: PLC0415  see above
    from envbuilder.mount.ahead import Ahead  # noqa: PLC0415  see above
    from envbuilder.mount.container.runtime import find_runtime  # noqa: PLC0415  see above
    from envbuilder.mount.prepare import MetadataRead  # noqa: PLC0415  see above
    from envbuilder.mount.run import RunOptions, run_image  # noqa: PLC0415  see above
    from envbuilder.mount.startup.traces import TraceSearch  # noqa: PLC0415  see above
    from envbuilder.mount.warm import keep  # noqa: PLC0415  see above

    wanted = app.settings.get("run.runtime")
    runtime = None if dry_run else begun(lambda: find_runtime(settings.state_dir, wanted), "runtime", finishing=True)
    source = looked_up.result()
    check_trust(app, source)
    known = Documents(settings.cache_dir / "documents")
    search, metadata = TraceSearch(source.target, known), MetadataRead(source.target, settings.cache_dir)
    image = open_image(
        source.target,
        source.what,
        host_platform_of(),
        chosen=search.begin if settings.trace and not full and not dry_run else None,
        found=None if dry_run else metadata.begin,
    )
    if dry_run:
        plan = {"pinned": source.pinned, "command": list(words), "mode": "lazy" if image.lazy else "unpack"}
        return Result(f"would start {' '.join(words) or 'the default command'} in {source.pinned}", plan)
    options = RunOptions(
        command=words,
        env=dict(_variable(text) for text in variables),
        working_dir=workdir,
        user=user,
        gpus=cast('Literal["auto", "all", "none"]', gpus),
        terminal=sys.stdin.isatty() and sys.stdout.isatty() and not reports,
        full=full,
        measure=bool(reports),
        runtime=wanted,
    )
    ahead = Ahead(keeper=keeper, search=search, metadata=metadata, runtime=runtime)
    done = run_image(image, source.target, settings, options, begun_s=begun_s, ahead=ahead)
    # A policy is asked at every start: who signed may have changed.
    if asked and done.decision and not app.settings.get("resolve.policy"):
        keep(asked.folder, asked.key, done.decision)
    for report in reports:
        _write_report(report.absolute(), {"pinned": source.pinned, "full": full, **done.to_json()})
    return Result("", None, exit_code=done.exit_code)


def _write_report(file: Path, value: dict[str, Any]) -> None:
    if file.suffix == ".svg":
        from envbuilder.mount.seen.picture import picture  # noqa: PLC0415  seldom needed

        data = picture(value).encode()
    else:
        data = json.dumps(value, indent=2).encode() + b"\n"
    write_whole(file.parent, file, data)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"want NAME=VALUE, got {text!r}", param_hint="--env")
    return name, value


def _process_started_s() -> float:
    """When this process was started, on the monotonic clock: what a user waits for begins there (proc(5), stat)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s
