"""What mounts have done, in the text format that Prometheus reads (exposition format 0.0.4). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envbuilder.mount.chunks.eviction import BlobUse
from envbuilder.mount.counters import Snapshot
from envbuilder.mount.seen.totals import Totals
from envbuilder.mount.state import MountStatus

#: Counters that time is kept of in microseconds; Prometheus wants seconds.
_SECONDS = {"waited_us": "waited_seconds"}


def hit_rate(counters: Snapshot) -> float | None:
    """The share of reads that were answered without waiting; None before the first read.

    A page that the kernel was given before it asked counts as one.
    """
    answered = counters.hits + counters.pushed_pages
    reads = answered + counters.waits
    return answered / reads if reads else None


def node_totals(mounts: Sequence[MountStatus], ended: Totals) -> Totals:
    """What mounts of this node have done since it was booted: those that are, and those that ended."""
    for mount in mounts:
        ended = ended.plus(mount.record.id, mount.counters)
    return ended


def prometheus(
    mounts: Sequence[MountStatus], blobs: Sequence[BlobUse], limit: int | None, ended: Totals | None = None
) -> str:
    """Counters of every mount, by its id and image, and what the chunk store takes, bytes.

    ended: of mounts that are gone; the sums with those that are here outlive both.
    """
    return "\n".join(_lines(mounts, blobs, limit, ended or Totals())) + "\n"


def _lines(mounts: Sequence[MountStatus], blobs: Sequence[BlobUse], limit: int | None, ended: Totals) -> Iterator[str]:
    totals = node_totals(mounts, ended)
    for name, value in totals.counters.to_json().items():
        metric = f"envbuilder_node_{_SECONDS.get(name, name)}_total"
        yield f"# TYPE {metric} counter"
        yield f"{metric} {_number(name, value)}"
    yield "# TYPE envbuilder_node_mounts_total counter"
    yield f"envbuilder_node_mounts_total {totals.mounts}"
    for name in Snapshot().to_json():
        metric = f"envbuilder_mount_{_SECONDS.get(name, name)}_total"
        yield f"# TYPE {metric} counter"
        for mount in mounts:
            text = _number(name, mount.counters.to_json()[name])
            yield f'{metric}{{id="{mount.record.id}",image="{mount.record.image}"}} {text}'
    yield "# TYPE envbuilder_mounts gauge"
    yield f"envbuilder_mounts {len(mounts)}"
    yield "# TYPE envbuilder_chunks_bytes gauge"
    yield f"envbuilder_chunks_bytes {sum(blob.size for blob in blobs)}"
    if limit is not None:
        yield "# TYPE envbuilder_chunks_limit_bytes gauge"
        yield f"envbuilder_chunks_limit_bytes {limit}"


def _number(name: str, value: int) -> str:
    return f"{value / 1e6:.6f}" if name in _SECONDS else str(value)
