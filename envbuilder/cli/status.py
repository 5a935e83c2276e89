"""``envbuilder status [MOUNT]``: what this node has mounted, fetched and kept; with --follow as it happens."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result, human_size, table
from envbuilder.errors import SpecError
from envbuilder.mount.chunks.eviction import usage
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.metrics import hit_rate, node_totals
from envbuilder.mount.seen.status import Follower, Moment
from envbuilder.mount.seen.totals import read_totals
from envbuilder.mount.state import MountStatus, in_use, statuses

#: Seconds between two looks.
_EVERY_S = 1.0
#: Files that are shown of a mount that is not the only one.
_FEW_FILES = 3


class NoSuchMount(SpecError):
    """A word names no mount of this node."""

    hint = "Name the id that `envbuilder ps` shows, the start of one, or where it is mounted."


@click.command(name="status", epilog="Example: envbuilder status --follow")
@click.argument("mount", metavar="[MOUNT]", default="")
@click.option("--follow", is_flag=True, help="Show it anew every second; with MOUNT until that ends.")
@common
def command(app: App, mount: str, follow: bool) -> Result:
    """Say what is mounted, what its jobs wait for, what the chunk store takes and what was fetched since boot.

    MOUNT is an id or a mount point. A job that was started with run is followed from another terminal; with --json
    each look is one line.
    """
    state_dir = app.mount_settings().state_dir
    follower = Follower(state_dir)
    if follow:
        return _follow(app, mount, follower)
    moments = [follower.look(each) for each in _chosen(statuses(state_dir), mount)]
    value = {**_node(app), "mounts": [each.to_json() for each in moments]}
    return Result("\n".join([*_node_lines(value), *_lines(moments)]), value)


def _follow(app: App, mount: str, follower: Follower) -> Result:
    if mount:
        _chosen(statuses(follower.state_dir), mount)
    drawn = sys.stdout.isatty() and not app.output.as_json
    while True:
        begun = time.monotonic()
        try:
            moments = [follower.look(each) for each in _chosen(statuses(follower.state_dir), mount)]
        except NoSuchMount:
            return Result("", None)
        if app.output.as_json:
            text = json.dumps([each.to_json() for each in moments])
        else:
            text = "\n".join(_lines(moments) or ["nothing is mounted"])
        # A terminal is drawn over from its upper left corner (ECMA-48: CUP, ED).
        sys.stdout.write(f"\x1b[H\x1b[J{text}\n" if drawn else f"{text}\n")
        sys.stdout.flush()
        time.sleep(max(0.0, _EVERY_S - (time.monotonic() - begun)))


def _chosen(mounts: Sequence[MountStatus], name: str) -> list[MountStatus]:
    """All of ``mounts``, or the one of that name.

    Raises:
        NoSuchMount: there is none.
    """
    if not name:
        return list(mounts)
    path = str(Path(name).resolve())
    found = [each for each in mounts if each.record.id.startswith(name) or each.record.directory == path]
    if not found:
        raise NoSuchMount(f"{name}: nothing of that name is mounted")
    return found


def _node(app: App) -> dict[str, Any]:
    settings = app.mount_settings()
    store = ChunkStore(settings.cache_dir / "chunks")
    blobs = usage(store, in_use(settings.state_dir))
    totals = node_totals(statuses(settings.state_dir), read_totals(settings.state_dir))
    return {
        "store": {
            "bytes": sum(blob.size for blob in blobs),
            "limit": settings.quota.limit(store.directory),
            "layers": len(blobs),
            "layers_in_use": sum(blob.in_use for blob in blobs),
        },
        "totals": {
            "mounts": totals.mounts,
            "counters": totals.counters.to_json(),
            "hit_rate": hit_rate(totals.counters),
        },
    }


def _node_lines(value: dict[str, Any]) -> list[str]:
    store, totals = value["store"], value["totals"]
    limit = f" of {human_size(store['limit'])}" if store["limit"] is not None else ""
    rate, counters = totals["hit_rate"], totals["counters"]
    hits = "" if rate is None else f", {100 * rate:.1f} % of reads answered at once"
    fetched, waited = human_size(counters["fetched_bytes"]), f"{counters['waited_us'] / 1e6:.1f} s"
    return [
        f"chunks: {human_size(store['bytes'])}{limit}, {store['layers']} layers, {store['layers_in_use']} in use",
        f"since boot: {totals['mounts']} mounts, {fetched} fetched{hits}, {waited} waited",
    ]


def _lines(moments: Sequence[Moment]) -> list[str]:
    lines: list[str] = []
    for moment in moments:
        record, counters = moment.status.record, moment.status.counters
        rate = hit_rate(counters)
        where = "private" if record.private else record.directory
        hits = "" if rate is None else f", {100 * rate:.1f} % of reads at once"
        lines += ["", f"{record.id}  {record.image[:19]}  {record.how or 'starting'}  {where}"]
        lines.append(
            f"  {moment.state}, {human_size(counters.fetched_bytes)} fetched, "
            f"{human_size(int(moment.rate))}/s{hits}, {counters.waited_us / 1e6:.2f} s waited"
        )
        lines += [f"  log: {moment.log}"] if moment.log else []
        lines += [f"  waiting {seconds:.1f} s for {path}" for seconds, path in moment.waiting[:_FEW_FILES]]
        files = moment.by_file if len(moments) == 1 else moment.by_file[:_FEW_FILES]
        if files:
            rows = [(f"  {each.seconds:.3f} s", str(each.waits), each.path) for each in files]
            lines.append(table([("  waited", "reads", "file"), *rows]))
    return lines
