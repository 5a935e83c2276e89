"""``envbuilder resolve REF``: the immutable digest and the start plan."""

from __future__ import annotations

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, pairs
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.cli.trust import check_trust
from envbuilder.oci.platform import Platform
from envbuilder.resolve.resolver import resolve


@click.command(name="resolve", epilog="Example: envbuilder resolve localhost:5000/env/ai:1 --json")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--platform", default="", metavar="P", help="Platform to start on (default: this host's).")
@click.option("--policy", default="", metavar="FILE", help="Trust policy that the image must meet (resolve.policy).")
@common
def command(app: App, reference: str, platform: str, policy: str) -> Result:
    """Pin REF to a digest, and say how a job would start on it.

    Tags are looked up once: use the pinned reference from then on. With a trust policy, an image that it does not
    let pass is an error.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    source = open_source(app, reference)
    trust = check_trust(app, source, policy)
    resolution = resolve(source.target, source.what, parsed, asked=reference, pinned=source.pinned)
    text = pairs(
        {
            "pinned": resolution.pinned,
            "platform": str(resolution.platform),
            "start": f"{resolution.start}: {resolution.why}",
            "layers": str(resolution.layers),
            "size": human_size(resolution.size),
            **({"signed by": ", ".join(trust.signed_by) or "nobody need"} if trust else {}),
        }
    )
    return Result(text, {**resolution.to_json(), "trust": trust.to_json() if trust else None})
