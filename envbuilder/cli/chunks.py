"""``envbuilder chunks ACTION``: what lazily started images keep on this node, freed and checked."""

from __future__ import annotations

import os
import time

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result, human_size, table
from envbuilder.mount.chunks.eviction import Quota, evict, plan_eviction, remove_going, usage
from envbuilder.mount.chunks.fsck import check_store
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.state import in_use, reap


@click.command(name="chunks", epilog="Example: envbuilder chunks gc --down-to 50GB")
@click.argument("action", type=click.Choice(["list", "gc", "fsck"]), default="list")
@click.option("--down-to", default="", metavar="SIZE", help="gc: how much may stay, 50GB (default: the quota).")
@click.option("--dry-run", is_flag=True, help="Say what would go or be forgotten, change nothing.")
@common
def command(app: App, action: str, down_to: str, dry_run: bool) -> Result:
    """List what lazily started images keep on this node; gc: let the longest unused go; fsck: check it.

    What a mount uses never goes. fsck reads every chunk that is on disk for good and forgets those that the disk
    changed; they are fetched again when they are read. Exit status 4: something was changed.
    """
    settings = app.mount_settings()
    store = ChunkStore(settings.cache_dir / "chunks")
    if action == "fsck":
        return _check(app, store, dry_run=dry_run)
    if not dry_run and os.geteuid() == 0:
        reap(settings.state_dir)
    blobs = usage(store, in_use(settings.state_dir))
    total = sum(blob.size for blob in blobs)
    quota = Quota.parse(down_to) if down_to else settings.quota
    limit = quota.limit(store.directory)
    if action == "list":
        value = {"bytes": total, "limit": limit, "blobs": [blob.to_json() for blob in blobs]}
        rows = [
            (
                (blob.layer or f"sha256:{blob.digest}")[: len("sha256:") + 12],
                human_size(blob.size),
                human_size(blob.whole),
                "whole" if blob.complete else "part",
                "in use" if blob.in_use else time.strftime("%Y-%m-%d %H:%M", time.localtime(blob.used_at)),
            )
            for blob in blobs
        ]
        of = f" of {human_size(limit)}" if limit is not None else ""
        text = table([("layer", "on disk", "unpacked", "", "last used"), *rows]) + f"\n{human_size(total)}{of}"
        return Result(text, value)
    plan = plan_eviction(blobs, limit)
    if dry_run:
        freed = plan.size
    else:
        remove_going(store)
        freed = evict(store, plan)
    word = "would free" if dry_run else "freed"
    text = f"{word} {human_size(freed)}: {len(plan.blobs)} layers"
    if plan.over:
        text += f"; {human_size(plan.over)} above the limit are in use"
    return Result(
        text, {"layers": [b.digest for b in plan.blobs], "bytes": freed, "over": plan.over, "dry_run": dry_run}
    )


def _check(app: App, store: ChunkStore, *, dry_run: bool) -> Result:
    with app.output.stage("checking chunks") as meter:
        report = check_store(store, repair=not dry_run, progress=meter.advance)
    lines = [f"{report.checked} chunks are what they were, {report.unchecked} have no sum yet"]
    if report.damages:
        bad = sum(len(damage.chunks) for damage in report.damages)
        lines[0] = f"{report.checked} chunks read, {bad} of them changed, {report.unchecked} have no sum yet"
    for damage in report.damages:
        what = damage.void or f"chunks {', '.join(map(str, damage.chunks[:20]))}"
        lines.append(f"sha256:{damage.digest}: {what}{'' if dry_run else ': forgotten'}")
    return Result("\n".join(lines), report.to_json(), exit_code=4 if report.damages else 0)
