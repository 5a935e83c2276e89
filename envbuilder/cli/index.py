"""``envbuilder index REF``: let gzip layers of others be read by ranges, from the first start on a node on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, table
from envbuilder.cli.targets import Source, host_platform_of, open_source, writable
from envbuilder.digest import Descriptor, Digest
from envbuilder.image.inspect import open_image
from envbuilder.mount.foreign.layerindex import attach_layer_index, find_layer_index
from envbuilder.mount.foreign.pulled import pull_layer
from envbuilder.oci.platform import Platform
from envbuilder.oci.tables import has_table
from envbuilder.store.target import Target


@click.command(name="index", epilog="Example: envbuilder index registry.example/theirs/app:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--platform", default="", metavar="P", help="Platform to index (default: this host's).")
@click.option("--again", is_flag=True, help="Also layers that have an index already.")
@click.option("--dry-run", is_flag=True, help="Say what would be indexed, write nothing.")
@common
def command(app: App, reference: str, platform: str, again: bool, dry_run: bool) -> Result:
    """Store a checkpoint index beside each plain gzip or tar layer of the image REF. Digests stay as they are.

    A node that believes it (mount.layer-indexes) starts the image at once and fetches only what is read. Each layer is
    pulled and checked once here. Images of ours, eStargz and zstd:chunked layers need none.
    """
    source = open_source(app, reference)
    image = open_image(source.target, source.what, Platform.parse(platform) if platform else host_platform_of())
    rows = []
    if image.lazy is None:
        target = source.target if dry_run else writable(app, source)
        layers = zip(image.manifest.layers, image.config.diff_ids, strict=True)
        rows = [_row(app, source, target, layer, diff_id, again=again, dry_run=dry_run) for layer, diff_id in layers]
    value = {"pinned": source.pinned, "layers": rows, "dry_run": dry_run}
    if not rows:
        return Result("it needs no index: it is read by its own", value)
    shown = [(row["digest"][:19], human_size(row["size"]), row["what"]) for row in rows]
    return Result(table([("layer", "size", ""), *shown]), value)


def _row(
    app: App, source: Source, target: Target, layer: Descriptor, diff_id: Digest, *, again: bool, dry_run: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"digest": str(layer.digest), "size": layer.size}
    if has_table(layer):
        return {**row, "what": "has a table of its own"}
    if not again and find_layer_index(source.target, layer) is not None:
        return {**row, "what": "is indexed"}
    if dry_run:
        return {**row, "what": "would be indexed"}
    folder = app.mount_settings().cache_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="index-", dir=folder) as scratch,
        app.output.stage(f"index {str(layer.digest)[:19]}", layer.size) as meter,
    ):
        made = pull_layer(source.target, layer, diff_id, Path(scratch) / "layer.tar", meter.advance)
    if not made.spans.is_readable:
        return {**row, "what": "cannot be read by ranges: it is one frame"}
    found = attach_layer_index(target, layer, made)
    return {**row, "what": "indexed now", "index": str(found.digest)}
