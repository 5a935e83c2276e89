"""``envbuilder attach REF FILE...``: files beside an image, found through it."""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.targets import open_source, writable
from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest
from envbuilder.errors import SpecError
from envbuilder.oci import media_types
from envbuilder.store.files import disk_errors
from envbuilder.store.referrers import attach

#: RFC 6838, 4.2: how registries want a type to look.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}\Z")


@click.command(
    name="attach", epilog="Example: envbuilder attach localhost:5000/env/ai:1 sbom.json --type application/spdx+json"
)
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.argument("files", metavar="FILE...", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--type", "artifact_type", required=True, metavar="TYPE", help="Media type of the artifact.")
@click.option("--annotation", "annotations", multiple=True, metavar="KEY=TEXT", help="Say something about it; repeat.")
@click.option("--dry-run", is_flag=True, help="Say what would be attached, attach nothing.")
@common
def command(
    app: App, reference: str, files: tuple[Path, ...], artifact_type: str, annotations: tuple[str, ...], dry_run: bool
) -> Result:
    """Store FILEs as an artifact of the image REF, in a registry or a layout. Prints its digest.

    It is listed by the registry's referrers API, or under the tag sha256-HEX where there is none.
    """
    named = dict(text.partition("=")[::2] for text in annotations)
    if not _MEDIA_TYPE.match(artifact_type) or not all(named):
        raise SpecError("attach: want --type as a media type (application/x) and --annotation as KEY=TEXT")
    source = open_source(app, reference)
    blobs = [(_describe(file, artifact_type), partial(_opened, file)) for file in files]
    value = {"subject": source.pinned, "artifactType": artifact_type, "files": [str(file) for file in files]}
    if dry_run:
        size = sum(what.size for what, _ in blobs)
        return Result(f"would attach {len(blobs)} files ({size} bytes) to {source.pinned}", {**value, "dry_run": True})
    what = attach(writable(app, source), source.what, artifact_type, blobs, named)
    return Result(str(what.digest), {**value, "digest": str(what.digest), "dry_run": False})


def _opened(file: Path) -> BinaryIO:
    return file.open("rb")


def _describe(file: Path, media_type: str) -> Descriptor:
    hashed = hashlib.sha256()
    with disk_errors(file), file.open("rb") as stream:
        size = 0
        while block := stream.read(BLOCK_SIZE):
            hashed.update(block)
            size += len(block)
    digest = Digest("sha256:" + hashed.hexdigest())
    return Descriptor(media_type=media_type, digest=digest, size=size, annotations={media_types.TITLE: file.name})
