"""``envbuilder archive ENV DEST``: every wheel and deb of a lock as one OCI artifact."""

from __future__ import annotations

import os
import threading

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.targets import host_platform_of, open_destination
from envbuilder.lock.artifact_archive import archive_manifest, missing_blobs, push_archive
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import InvalidReference
from envbuilder.store.target import SerialTarget


@click.command(name="archive", epilog="Example: envbuilder archive ai localhost:5000/env/ai:1-artefacts")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.argument("destination", metavar="DEST")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(app: App, environment: str, destination: str, platform: str, dry_run: bool) -> Result:
    """Store every artefact of ENV's lock, and the lock itself, in DEST: a registry or a layout.

    A later 'build --from-archive DEST' asks no index and no mirror. Only what is missing there moves.
    Prints the digest.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    locks = fresh_locks(app.need_project(), environment, parsed)
    target, tag = open_destination(app, destination)
    if isinstance(target, SerialTarget):
        raise InvalidReference(f"{destination}: want a registry or a layout", hint="Name host/name:tag or oci:DIR.")
    what, _, blobs = archive_manifest(locks)
    missing = missing_blobs(target, blobs)
    size = sum(blob.size for blob in missing)
    app.output.note(
        f"{environment}: {len(missing)} artefacts to move ({human_size(size)}), {len(blobs) - len(missing)} are there"
    )
    if not dry_run:
        guard = threading.Lock()
        with app.output.stage(f"{environment}: archive", size) as meter:

            def sent(more: int) -> None:
                with guard:
                    meter.advance(more)

            push_archive(target, locks, artifact_cache(app, os.environ), tag=tag, sent=sent)
    value = {
        "name": environment,
        "destination": destination,
        "digest": str(what.digest),
        "artifacts": len(blobs),
        "moved": len(missing),
        "moved_bytes": size,
        "dry_run": dry_run,
    }
    return Result(str(what.digest), value)
