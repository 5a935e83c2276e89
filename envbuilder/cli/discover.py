"""``envbuilder discover REF``: what is attached to an image."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import open_source
from envbuilder.store.referrers import referrers


@click.command(name="discover", epilog="Example: envbuilder discover localhost:5000/env/ai:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--type", "artifact_type", default=None, metavar="TYPE", help="Only artifacts of this media type.")
@common
def command(app: App, reference: str, artifact_type: str | None) -> Result:
    """List what is attached to the image REF: signatures, SBOMs, traces, locks. A line each: digest and type."""
    source = open_source(app, reference)
    found = referrers(source.target, source.what, artifact_type)
    value = {"subject": source.pinned, "referrers": [each.to_json() for each in found]}
    lines = [f"{each.digest}  {each.artifact_type or each.media_type}" for each in found]
    return Result("\n".join(lines) or "nothing is attached", value)
