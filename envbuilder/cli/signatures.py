"""``envbuilder signatures REF``: who signed an image, checked against a key, an identity or the trust policy."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import open_source
from envbuilder.cli.trust import check_policy
from envbuilder.errors import SpecError
from envbuilder.registry.cosign import MAX_KEY, load_public_key
from envbuilder.registry.keyless import Identity
from envbuilder.registry.signatures import Signer, find_signatures, verify
from envbuilder.spec.toml import read_document


@click.command(name="signatures", epilog="Example: envbuilder signatures localhost:5000/env/ai:1 --key cosign.pub")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="Public key that must have signed.")
@click.option("--identity", default="", metavar="WHO", help="Who must have signed without a key; needs --issuer.")
@click.option("--issuer", default="", metavar="URL", help="Who must have vouched for that identity.")
@click.option(
    "--trust-root",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Authorities and logs that count for --identity (default: sigstore's public ones).",
)
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE", help="Trust policy that must be met.")
@common
def command(
    app: App, reference: str, key: Path | None, identity: str, issuer: str, trust_root: Path | None, policy: Path | None
) -> Result:
    """Check who signed the image that REF names now; fail unless the one who must have did. Prints the pinned image.

    Without a key, identity or policy the signatures are only listed, unchecked.
    """
    if bool(identity) != bool(issuer):
        raise SpecError("signatures: want --identity and --issuer together")
    source = open_source(app, reference)
    signers: dict[str, Signer] = {}
    if key:
        data = read_document(key, most=MAX_KEY, source=str(key))
        signers[str(key)] = load_public_key(data or b"", source=str(key))
    if identity:
        signers[identity] = Identity(identity=identity, issuer=issuer, trust_root=trust_root)
    value: dict[str, object] = {"pinned": source.pinned}
    if not signers and not policy:
        found = [{"form": each.form, "where": each.where} for each in find_signatures(source.target, source.what)]
        lines = [f"{each['form']}  {each['where']}" for each in found]
        return Result("\n".join(lines) or "not signed", {**value, "signatures": found, "verified": False})
    signed_by = [verify(source.target, source.what, {name: signer})[0] for name, signer in signers.items()]
    if policy:
        signed_by += check_policy(source, policy).signed_by
    return Result(source.pinned, {**value, "signedBy": signed_by, "verified": True})
