"""``envbuilder export ENV``: a lock for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.project import fresh_locks
from envbuilder.cli.targets import host_platform_of
from envbuilder.cli.why import requirers
from envbuilder.errors import SpecError
from envbuilder.lock.codec import digest
from envbuilder.lock.export import delta, pylock, requirements
from envbuilder.lock.model import Lock
from envbuilder.oci.platform import Platform
from envbuilder.spec.project import lineage
from envbuilder.store.files import write_whole


class NoFolder(SpecError):
    """The file is to be written into a folder that is not there."""


class NoParent(SpecError):
    """The difference to the parent was asked of an environment that extends none."""


@click.command(name="export", epilog="Example: envbuilder export ai --format requirements --output requirements.txt")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["pylock", "requirements", "delta"]),
    default="pylock",
    show_default=True,
    help="pylock.toml, hashed requirements, or the requirements that the parent has not.",
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write there.")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@click.option("--dry-run", is_flag=True, help="Write no file.")
@common
def command(app: App, environment: str, kind: str, output: Path | None, platform: str, dry_run: bool) -> Result:
    """Write the Python packages of ENV's lock in a form that pip, uv and pip-tools read.

    pylock: PEP 751, for a folder of the wheels. requirements: as pip-compile writes them, for --require-hashes.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    locks = fresh_locks(app.need_project(), environment, parsed)
    text = _text(app, environment, locks, kind)
    if output is None:
        return Result(text.rstrip("\n"), {"name": environment, "format": kind, "text": text})
    if not output.absolute().parent.is_dir():
        raise NoFolder(f"{output}: there is no folder {output.parent}", hint=f"Make it first: mkdir -p {output.parent}")
    if not dry_run:
        write_whole(output.absolute().parent, output.absolute(), text.encode())
    value = {"name": environment, "format": kind, "file": str(output), "dry_run": dry_run}
    return Result(str(output), value)


def _text(app: App, environment: str, locks: tuple[Lock, ...], kind: str) -> str:
    lock = locks[-1]
    if kind == "pylock":
        return pylock(lock, lock_digest=str(digest(lock)))
    if kind == "delta":
        if len(locks) == 1:
            raise NoParent(f"{environment}: extends no environment", hint="Export it as pylock or requirements.")
        return delta(lock, locks[-2])
    specs = list(lineage(app.need_project(), environment))
    who, _ = requirers(app, lock, specs, fetch=False)
    via = {
        name: sorted({need.name or f"-r images/{environment}/env.toml" for need in asked})
        for name, asked in who.items()
    }
    return requirements(lock, who=via)
