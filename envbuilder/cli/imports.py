"""``envbuilder import FILE``: a declaration from another tool's file."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.errors import SpecError
from envbuilder.lock.imports import declaration, read_import
from envbuilder.spec.parse import NAME, parse
from envbuilder.spec.project import environment_folder
from envbuilder.store.files import disk_errors, write_whole


class AlreadyDeclared(SpecError):
    """An import would replace an environment."""


@click.command(name="import", epilog="Example: envbuilder import requirements.txt --name analysis")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option("--name", required=True, metavar="ENV", help="Name of the environment to declare.")
@click.option("--extends", default="", metavar="ENV", help="Environment that it extends, in place of a base.")
@click.option("--force", is_flag=True, help="Replace the declaration if there is one.")
@click.option("--dry-run", is_flag=True, help="Print the declaration, write nothing.")
@common
def command(app: App, file: Path, name: str, extends: str, force: bool, dry_run: bool) -> Result:
    """Make images/ENV/env.toml from FILE: uv.lock, pylock.toml, requirements.txt or environment.yml.

    What FILE asks for becomes 'requires', every version that it pins a constraint. What has no place in a
    declaration is left out and listed. Nothing is fetched.
    """
    if not NAME.match(name):
        raise SpecError(f"--name: not an environment's name: {name[:100]!r}")
    project = app.need_project()
    imported = read_import(file)
    text = declaration(imported, name, extends=extends, source=file.name)
    label = f"images/{name}/env.toml"
    parse(text, file=label, digest_of=lambda _source: None)  # what we wrote must be what we read
    for what, why in imported.left_out:
        app.output.note(f"left out: {what}: {why}")
    folder = environment_folder(project, name)
    if (folder / "env.toml").exists() and not force and not dry_run:
        raise AlreadyDeclared(f"{label}: is there already", hint="Choose another --name, or say --force.")
    if not dry_run:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder, folder / "env.toml", text.encode())
    value = {
        "name": name,
        "file": label,
        "requires": list(imported.requires),
        "constraints": list(imported.constraints),
        "python": imported.python,
        "left_out": [{"what": what, "why": why} for what, why in imported.left_out],
        "dry_run": dry_run,
    }
    return Result(text.rstrip("\n") if dry_run else label, value)
