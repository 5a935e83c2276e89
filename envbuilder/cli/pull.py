"""``envbuilder pull REF [--to REF]``: an image from a registry into the store or elsewhere."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.targets import copy_image


@click.command(name="pull", epilog="Example: envbuilder pull localhost:5000/env/ai:1 --to oci:out/ai:1")
@click.argument("reference", metavar="REF")
@click.option(
    "--to", "destination", metavar="REF", default="", help="Where to (default: the store, tagged as REF is written)."
)
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(app: App, reference: str, destination: str, dry_run: bool) -> Result:
    """Copy the image REF into the store, or to another place.

    Blobs that are there already are not fetched; every digest is verified. Prints the digest.
    """
    return copy_image(app, reference, destination, what="pull", dry_run=dry_run)
