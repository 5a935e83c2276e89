"""``envbuilder ps``: what is mounted, and how its lazy start goes."""

from __future__ import annotations

import time

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result, human_size, table
from envbuilder.mount.chunks.eviction import usage
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.metrics import hit_rate, prometheus
from envbuilder.mount.seen.totals import read_totals
from envbuilder.mount.state import MountStatus, in_use, statuses


@click.command(name="ps", epilog="Example: envbuilder ps --json")
@click.option(
    "--prometheus", "as_metrics", is_flag=True, help="Print metrics, the chunk store's and sums of the node too."
)
@common
def command(app: App, as_metrics: bool) -> Result:
    """List what is mounted: image, age, bytes fetched, reads answered without waiting, seconds waited."""
    settings = app.mount_settings()
    mounts = statuses(settings.state_dir)
    value = [{**mount.to_json(), "hit_rate": hit_rate(mount.counters)} for mount in mounts]
    if as_metrics:
        store = ChunkStore(settings.cache_dir / "chunks")
        blobs = usage(store, in_use(settings.state_dir))
        limit, ended = settings.quota.limit(store.directory), read_totals(settings.state_dir)
        return Result(prometheus(mounts, blobs, limit, ended).rstrip(), value)
    rows = [("id", "image", "how", "seconds", "fetched", "hits", "waited", "where"), *map(_row, mounts)]
    return Result(table(rows), value)


def _row(mount: MountStatus) -> tuple[str, ...]:
    record, counters = mount.record, mount.counters
    rate = hit_rate(counters)
    return (
        record.id,
        record.image[:19],
        record.how if mount.state == "kept" else mount.state,
        f"{time.time() - record.started_at:.0f}",
        human_size(counters.fetched_bytes),
        "" if rate is None else f"{100 * rate:.1f} %",
        f"{counters.waited_us / 1e6:.2f} s",
        "private" if record.private else record.directory,
    )
