"""``envbuilder unmount DIR``."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.mount.unmount import find_mount, unmount


@click.command(name="unmount", epilog="Example: envbuilder unmount /mnt/ai")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Although it is in use: its users get errors.")
@click.option("--dry-run", is_flag=True, help="Check that there is a mount of ours at DIR, end nothing.")
@common
def command(app: App, directory: Path, force: bool, dry_run: bool) -> Result:
    """End the mount at DIR. What was written to it is thrown away; fetched chunks stay on this node."""
    state = app.mount_settings().state_dir
    if dry_run:
        find_mount(directory, state)
    else:
        unmount(directory, state, force=force)
    return Result(str(directory), {"directory": str(directory.absolute())})
