"""``envbuilder discover REF``: what is attached to an image."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import open_source
from envbuilder.store.copy_referrers import manifests_of
from envbuilder.store.referrers import referrers


@click.command(name="discover", epilog="Example: envbuilder discover localhost:5000/env/ai:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--type", "artifact_type", default=None, metavar="TYPE", help="Only artifacts of this media type.")
@common
def command(app: App, reference: str, artifact_type: str | None) -> Result:
    """List what is attached to the image REF (signatures, SBOMs, locks) and to its manifests (traces).

    A line each: digest, type, and the manifest where it is of one.
    """
    source = open_source(app, reference)
    found = [
        (subject.digest, each)
        for subject in manifests_of(source.target, source.what)
        for each in referrers(source.target, subject, artifact_type)
    ]
    value = {
        "subject": source.pinned,
        "referrers": [{**each.to_json(), "subject": str(subject)} for subject, each in found],
    }
    lines = [
        f"{each.digest}  {each.artifact_type or each.media_type}"
        + (f"  {subject}" if subject != source.what.digest else "")
        for subject, each in found
    ]
    return Result("\n".join(lines) or "nothing is attached", value)
