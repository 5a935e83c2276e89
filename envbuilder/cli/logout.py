"""``envbuilder logout HOST``."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.registries import check_host, login_place, look_up
from envbuilder.registry.logins import erase


@click.command(name="logout", epilog="Example: envbuilder logout ghcr.io")
@click.argument("host", metavar="HOST")
@click.option("--dry-run", is_flag=True, help="Say where it would be removed from, remove nothing.")
@common
def command(app: App, host: str, dry_run: bool) -> Result:
    """Forget the login to the registry HOST, where login keeps it. Logins in other files stay, and are named."""
    host = check_host(host)
    place = login_place(app, host)
    removed = not dry_run and erase(place)
    left = None if dry_run else look_up(app, host)
    if left:
        app.output.note(f"{host}: there is still a login in {left.source}")
    value = {"host": host, "place": str(place), "removed": removed, "left": left.source if left else None}
    text = f"{host}: login removed from {place}" if removed else f"{host}: no login in {place}"
    return Result(f"{host}: would be removed from {place}" if dry_run else text, value)
