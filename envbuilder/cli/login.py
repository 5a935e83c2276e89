"""``envbuilder login HOST --username NAME``: check a password with the registry, then keep it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.registries import check_host, login_place, registry_client
from envbuilder.errors import SpecError
from envbuilder.registry.credentials import Credential
from envbuilder.registry.logins import store, verify

#: Characters of a password or token.
_MAX_PASSWORD = 64 << 10


class _Typed:
    """What was just typed, for every host that is asked about: there is one."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def find(self, host: str, repository: str, actions: Sequence[str] = ()) -> Credential | None:  # noqa: ARG002  # the protocol's names
        return self._credential

    def refused(self, host: str) -> None:
        pass


@click.command(name="login", epilog="Example: envbuilder login ghcr.io --username alice < token.txt")
@click.argument("host", metavar="HOST")
@click.option(
    "--username", "-u", metavar="NAME", required=True, help="Name; '<token>' if what follows is an identity token."
)
@click.option("--password-stdin", is_flag=True, help="Ask on no terminal: the password comes on stdin.")
@click.option("--no-verify", is_flag=True, help="Keep it without asking the registry.")
@click.option("--dry-run", is_flag=True, help="Ask the registry and say where it would be kept, keep nothing.")
@common
def command(app: App, host: str, username: str, password_stdin: bool, no_verify: bool, dry_run: bool) -> Result:
    """Keep a login to the registry HOST. The password is read from stdin, or asked for on a terminal.

    The registry must take it first. It is kept where Docker or podman would (registries.login-file),
    by the credential helper that is configured there, or else in the file, for its owner only.
    """
    host = check_host(host)
    place = login_place(app, host)
    password = _password(username, asked=sys.stdin.isatty() and not password_stdin)
    token = username == "<token>"
    credential = Credential(identity_token=password) if token else Credential(username=username, password=password)
    if not no_verify:
        with registry_client(app, _Typed(credential)) as client:
            if not verify(client.registry(host)):
                raise SpecError(
                    f"{host}: asks nobody who they are: nothing shows that this login is right; nothing was kept",
                    hint="Say --no-verify to keep it all the same.",
                )
    if not dry_run:
        store(place, credential)
    value = {"host": host, "username": username, "kept": str(place), "verified": not no_verify, "dry_run": dry_run}
    return Result(f"{host}: logged in as {username}, kept in {place}", value)


def _password(username: str, *, asked: bool) -> str:
    if asked:
        text = str(click.prompt(f"Password of {username}", hide_input=True, err=True))
    else:
        text = sys.stdin.read(_MAX_PASSWORD + 1).rstrip("\r\n")
    if not text or len(text) > _MAX_PASSWORD or "\0" in text or ":" in username:
        raise SpecError(
            "login: want a name without ':' and a password on stdin",
            hint="Give the password on stdin: envbuilder login HOST --username NAME < FILE",
        )
    return text
