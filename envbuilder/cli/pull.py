"""``envbuilder pull REF [--to REF]``: an image from a registry into the store or elsewhere."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.transfer import Transfer, transfer
from envbuilder.oci.platform import Platform


@click.command(name="pull", epilog="Example: envbuilder pull localhost:5000/env/ai:1 --to oci:out/ai:1")
@click.argument("reference", metavar="REF")
@click.option(
    "--to", "destination", metavar="REF", default="", help="Where to (default: the store, tagged as REF is written)."
)
@click.option("--platform", default="", metavar="P", help="Only the image of this platform, not the whole index.")
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(app: App, reference: str, destination: str, platform: str, dry_run: bool) -> Result:
    """Copy the image REF into the store, or to another place.

    Blobs that are there already are not fetched; every digest is verified. Prints the digest.
    """
    return transfer(
        app,
        Transfer(
            what="pull",
            reference=reference,
            destination=destination,
            platform=Platform.parse(platform) if platform else None,
            trusted=True,
            dry_run=dry_run,
        ),
    )
