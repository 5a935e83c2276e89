"""``envbuilder push REF DEST``: a verified copy of which only missing blobs move."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.transfer import Transfer, transfer


@click.command(name="push", epilog="Example: envbuilder push ai localhost:5000/env/ai:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("destination", metavar="DEST")
@click.option("--referrers", is_flag=True, help="Signatures, SBOMs, provenance, all that refers to the image, too.")
@click.option(
    "--mount-from", multiple=True, metavar="REPO", help="Repository of DEST's registry that may hold the layers."
)
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(
    app: App, reference: str, destination: str, referrers: bool, mount_from: tuple[str, ...], dry_run: bool
) -> Result:
    """Copy the image REF to DEST: a registry, a layout or an archive.

    Blobs that DEST has are not sent; every digest is verified; the tag is written last. What is attached
    to the image goes along with --referrers. Prints the digest.
    """
    return transfer(
        app,
        Transfer(
            what="push",
            reference=reference,
            destination=destination,
            referrers=referrers,
            mount_from=mount_from,
            dry_run=dry_run,
        ),
    )
