"""``envbuilder archive ENV DEST``: every wheel and deb of a lock, and its base, as one OCI artifact."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.bases import base_of
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.targets import host_platform_of, look_at_destination, open_destination
from envbuilder.lock.archived_base import BaseCopy
from envbuilder.lock.artifact_archive import ArchivePlan, plan_archive, push_archive
from envbuilder.lock.model import Lock
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import ArchiveReference, InvalidReference, parse_reference
from envbuilder.store.target import Target


@click.command(name="archive", epilog="Example: envbuilder archive ai localhost:5000/env/ai:1-artefacts")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.argument("destination", metavar="DEST")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@click.option("--dry-run", is_flag=True, help="Say what would move, move nothing.")
@common
def command(app: App, environment: str, destination: str, platform: str, dry_run: bool) -> Result:
    """Store every artefact of ENV's lock, and the lock itself, in DEST: a registry or a layout.

    A base of others ([base] image) is stored too, as it is. A later 'build --from-archive DEST' asks no index, no
    mirror and no registry of the base. Only what is missing there moves. Prints the digest.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    locks = fresh_locks(app.need_project(), environment, parsed)
    if isinstance(parse_reference(destination), ArchiveReference):
        raise InvalidReference(f"{destination}: want a registry or a layout", hint="Name host/name:tag or oci:DIR.")
    target, tag = _destination(app, destination, locks, dry_run=dry_run)
    planned = plan_archive(target, locks, base_of(app, locks, held=True))
    app.output.note(_summary(environment, planned))
    moved = planned.size
    if not dry_run:
        moved = _push(app, environment, target, locks, planned, tag)
    value = {
        "name": environment,
        "destination": destination,
        "digest": str(planned.root.digest),
        "artifacts": len(planned.blobs),
        "moved": len(planned.missing),
        "base": _base(planned.base) if planned.base else None,
        "moved_bytes": moved,
        "dry_run": dry_run,
    }
    return Result(str(planned.root.digest), value)


def _destination(app: App, destination: str, locks: Sequence[Lock], *, dry_run: bool) -> tuple[Target, str]:
    """Where the archive goes, and its tag; a registry that has the base, too, takes it from there."""
    if dry_run:
        return look_at_destination(app, destination), ""
    system = locks[0].system
    return open_destination(app, destination, near=[system.image] if system else [])


def _push(app: App, name: str, target: Target, locks: Sequence[Lock], planned: ArchivePlan, tag: str) -> int:
    """Do what is ``planned``; bytes that moved."""
    guard, moved = threading.Lock(), 0
    with app.output.stage(f"{name}: archive", planned.size) as meter:

        def sent(more: int) -> None:
            nonlocal moved
            with guard:
                moved += more
                meter.advance(more)

        push_archive(target, locks, artifact_cache(app, os.environ), plan=planned, tag=tag, sent=sent)
    return moved


def _base(base: BaseCopy) -> dict[str, Any]:
    return {
        "digest": str(base.plan.root.digest),
        "missing": len(base.plan.blobs),
        "missing_bytes": base.plan.size,
    }


def _summary(name: str, planned: ArchivePlan) -> str:
    size = sum(blob.size for blob in planned.missing)
    there = len(planned.blobs) - len(planned.missing)
    said = f"{name}: {len(planned.missing)} artefacts to move ({human_size(size)}), {there} are there"
    if planned.base is None:
        return said
    plan = planned.base.plan
    return f"{said}; of the base {len(plan.blobs)} blobs ({human_size(plan.size)}), {len(plan.present)} are there"
