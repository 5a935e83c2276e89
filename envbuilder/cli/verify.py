"""``envbuilder verify REF``: build an image again from the lock attached to it, and compare."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.bases import confined
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result
from envbuilder.cli.project import artifact_cache, compiling_packages
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.image.inspect import open_image
from envbuilder.image.verify import layers_of, verify_image
from envbuilder.layer.build import default_jobs
from envbuilder.layer.model import Layer
from envbuilder.oci.platform import Platform


@click.command(name="verify", epilog="Example: envbuilder verify localhost:5000/env/ai:1")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@click.option("--jobs", type=click.IntRange(1), default=default_jobs, help="Layers built at a time (default: cores).")
@click.option(
    "--work", type=click.Path(path_type=Path), metavar="DIR", help="Where the second build goes (default: the cache)."
)
@common
def command(app: App, reference: str, platform: str, jobs: int, work: Path | None) -> Result:
    """Build the image REF again from the lock attached to it and compare every digest. Prints the image's.

    Nothing of the store is reused, so this takes a whole build's time and as much disk; both are given back.
    When they differ, the error names the layer and the first file in it that is not the same.
    """
    source = open_source(app, reference)
    image = open_image(source.target, source.what, Platform.parse(platform) if platform else host_platform_of())
    folder = work or app.use_cache()
    folder.mkdir(parents=True, exist_ok=True)

    def finished(layer: Layer, _reused: bool) -> None:
        app.output.note(f"built again: {layer.id}")

    with (
        tempfile.TemporaryDirectory(prefix="verify-", dir=folder) as scratch,
        app.output.stage(f"verify {reference}"),
    ):
        rows = verify_image(
            source.target,
            image,
            artifact_cache(app, os.environ),
            Path(scratch),
            cache=app.cache_directory,
            jobs=jobs,
            finished=finished,
            confine=lambda locks, source: confined(app, locks, lambda: source),
            helper=lambda lock: compiling_packages(app.project, lock, host_platform_of()),
        )
    value = {"pinned": source.pinned, "digest": str(image.root.digest), "layers": layers_of(rows)}
    return Result(str(image.root.digest), value)
