"""``envbuilder push REF DEST``: a verified copy of which only missing blobs move."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import copy_image


@click.command(name="push", epilog="Example: envbuilder push ai localhost:5000/env/ai:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("destination", metavar="DEST")
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(app: App, reference: str, destination: str, dry_run: bool) -> Result:
    """Copy the image REF to DEST: a registry, a layout or an archive.

    Blobs that DEST has are not sent; every digest is verified on both sides; the tag is written last.
    Prints the digest.
    """
    return copy_image(app, reference, destination, what="push", dry_run=dry_run)
