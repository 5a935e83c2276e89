"""``envbuilder sign REF``: a keyed cosign signature beside an image."""

from __future__ import annotations

import os
from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import open_source, writable
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.cosign import MAX_KEY, BadKey, key_id, load_private_key
from envbuilder.registry.signatures import Form, sign
from envbuilder.spec.toml import read_document


@click.command(name="sign", epilog="Example: envbuilder sign localhost:5000/env/ai:1 --key cosign.key")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option(
    "--key", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Private key, PEM or cosign's."
)
@click.option(
    "--form",
    type=click.Choice(["bundle", "simple"]),
    default="bundle",
    help="A sigstore bundle as referrer, or the tag sha256-HEX.sig of older tools.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be signed, sign nothing.")
@common
def command(app: App, reference: str, key: Path, form: Form, dry_run: bool) -> Result:
    """Sign the digest that REF names now; the key's password is read from COSIGN_PASSWORD. Prints the pinned image.

    cosign verifies it: cosign verify --key cosign.pub --insecure-ignore-tlog IMAGE.
    """
    data = read_document(key, most=MAX_KEY, source=str(key))
    if data is None:
        raise BadKey(f"{key}: no such file")
    password = os.environ.get("COSIGN_PASSWORD")
    private = load_private_key(data, password.encode() if password else None, source=str(key))
    source = open_source(app, reference)
    made = None
    if not dry_run:
        name = source.reference.name if isinstance(source.reference, RegistryReference) else source.target.name
        made = sign(writable(app, source), source.what, private, name, form)
    value = {"pinned": source.pinned, "key": key_id(private.public_key()), "form": form}
    return Result(source.pinned, {**value, "signature": str(made.digest) if made else None, "dry_run": dry_run})
