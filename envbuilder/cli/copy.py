"""``envbuilder copy REF DEST``: an image from any place to any other, as it is."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.transfer import Transfer, transfer
from envbuilder.custom.flavours.names import FLAVOURS
from envbuilder.oci.platform import Platform


@click.command(
    name="copy",
    epilog="Example: envbuilder copy registry.example/env/ai:1 mirror.example/env/ai:1 --referrers",
)
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("destination", metavar="DEST")
@click.option("--platform", default="", metavar="P", help="Only the image of this platform, not the whole index.")
@click.option("--referrers", is_flag=True, help="Signatures, SBOMs and all else that refers to the image, too.")
@click.option(
    "--mount-from", multiple=True, metavar="REPO", help="Repository of DEST's registry that may hold the layers."
)
@click.option(
    "--flavour", type=click.Choice(FLAVOURS), default=None, help="In a lazy format of others: an image of its own."
)
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(
    app: App,
    reference: str,
    destination: str,
    platform: str,
    referrers: bool,
    mount_from: tuple[str, ...],
    flavour: str | None,
    dry_run: bool,
) -> Result:
    """Copy an image between registries, layouts (oci:DIR), archives (oci-archive:FILE, docker-archive:FILE).

    The whole index is copied, byte for byte: digests stay. Only what DEST lacks moves, and within one
    registry it is mounted. A docker-archive holds one platform, uncompressed. With --flavour the image of one
    platform is made anew in the store first, with another digest. Prints the digest.
    """
    return transfer(
        app,
        Transfer(
            what="copy",
            reference=reference,
            destination=destination,
            platform=Platform.parse(platform) if platform else None,
            referrers=referrers,
            mount_from=mount_from,
            flavour=flavour or "",
            dry_run=dry_run,
        ),
    )
