"""``envbuilder resolve REF...``: the immutable digest and the start plan, of one image or of many at once."""

from __future__ import annotations

import sys
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, pairs, table
from envbuilder.cli.registries import registry_client
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.cli.trust import check_trust
from envbuilder.errors import EnvbuilderError
from envbuilder.oci.platform import Platform
from envbuilder.resolve.many import Outcome, resolve_all
from envbuilder.resolve.model import Resolution
from envbuilder.resolve.resolver import resolve


@click.command(name="resolve", epilog="Example: envbuilder resolve localhost:5000/env/ai:1 --json")
@click.argument("references", metavar="REF...", nargs=-1, required=True, shell_complete=environment_names)
@click.option("--platform", default="", metavar="P", help="Platform to start on (default: this host's).")
@click.option("--policy", default="", metavar="FILE", help="Trust policy that the image must meet (resolve.policy).")
@common
def command(app: App, references: tuple[str, ...], platform: str, policy: str) -> Result:
    """Pin each REF to a digest, and say how a job would start on it.

    Tags are looked up once: use the pinned reference from then on. With a trust policy, an image that it does not
    let pass is an error. Many are resolved at once; those that fail are told and leave the others alone, and the exit
    status is that of the first of them.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    believes = app.switch("mount.layer-indexes")

    def one(text: str) -> tuple[Resolution, dict[str, Any] | None]:
        source = open_source(app, text)
        trust = check_trust(app, source, policy)
        resolution = resolve(
            source.target, source.what, parsed, asked=text, pinned=source.pinned, believes_indexes=believes
        )
        return resolution, trust.to_json() if trust else None

    if len(references) == 1:
        resolution, trust = one(references[0])
        signers = ", ".join(trust["signedBy"]) or "nobody need" if trust else ""
        return Result(_text(resolution, signers), resolution.to_json() | {"trust": trust})
    registry_client(app)  # made once, before there are threads
    return _of_many(resolve_all(references, one))


def _text(resolution: Resolution, signers: str) -> str:
    return pairs(
        {
            "pinned": resolution.pinned,
            "platform": str(resolution.platform),
            "start": f"{resolution.start}: {resolution.why}",
            "layers": str(resolution.layers),
            "size": human_size(resolution.size),
            **({"signed by": signers} if signers else {}),
        }
    )


def _of_many(outcomes: tuple[Outcome[tuple[Resolution, dict[str, Any] | None]], ...]) -> Result:
    rows, values, status = [("reference", "pinned", "start")], [], 0
    for outcome in outcomes:
        if outcome.found is not None:
            resolution, trust = outcome.found
            rows.append((outcome.asked, resolution.pinned, resolution.start))
            values.append(resolution.to_json() | {"trust": trust})
            continue
        assert outcome.error is not None
        values.append(_refused(outcome.asked, outcome.error))
        said = str(outcome.error)
        sys.stderr.write(f"error: {said if said.startswith(outcome.asked) else f'{outcome.asked}: {said}'}\n")
        status = status or outcome.error.exit_code
    hints = dict.fromkeys(outcome.error.hint for outcome in outcomes if outcome.error and outcome.error.hint)
    sys.stderr.write("".join(f"\nhint: {hint}\n" for hint in hints))
    return Result(table(rows), {"references": values}, exit_code=status)


def _refused(asked: str, error: EnvbuilderError) -> dict[str, Any]:
    return {"asked": asked, "error": str(error), "hint": error.hint, "exitCode": error.exit_code}
