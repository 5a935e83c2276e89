"""``envbuilder whoami HOST``: which credential is used for a registry, and where it is written. Never the secret."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.registries import check_host, look_up, registry_client
from envbuilder.registry.logins import verify


@click.command(name="whoami", epilog="Example: envbuilder whoami ghcr.io --check")
@click.argument("host", metavar="HOST")
@click.option("--check", is_flag=True, help="Ask the registry whether it takes the login.")
@common
def command(app: App, host: str, check: bool) -> Result:
    """Say who this machine is to the registry HOST, and which file or program says so. Never shows a secret."""
    host = check_host(host)
    found = look_up(app, host)
    name = (found.credential.username or None) if found else None
    value: dict[str, object] = {
        "host": host,
        "username": name,
        "kind": found.credential.kind if found else "anonymous",
        "source": found.source if found else None,
    }
    text = (
        f"{host}: {name or 'no name'} ({found.credential.kind}), from {found.source}" if found else f"{host}: anonymous"
    )
    if check:
        with registry_client(app) as client:
            value["asked"] = verify(client.registry(host))
        text += "; the registry takes it" if value["asked"] else "; the registry does not ask"
    return Result(text, value)
