"""First result of a command from a registry behind a slow link, nothing of the image on this machine.

Ours with a start-up trace, ours without, ours after a full pull, ``podman pull`` + ``podman run`` of the same
image, and a cold local disk. Lazy starts and the disk are repeated, since they are short; the median counts.
"""

from __future__ import annotations

import json
import statistics
import urllib.parse
from pathlib import Path

import peer_disk
from measure import Cost, Failed, measured
from peer_podman import Podman
from product import START, build_to, envbuilder, result
from record import Outcome, Target
from scratch import Bench, Unavailable, need_root, need_space, remove, tool, warm
from servers import Registry, distant_registry, raw_rate, registry

SPACE = {"hello": 3_000_000_000, "standard": 22_000_000_000, "ai": 32_000_000_000}
_RATE = "1gbit"
_REPEAT = 3
#: Of a cold local disk and of our own full pull, at most: with a trace and without.
_OF_DISK_TRACED, _OF_FULL_TRACED = 1.15, 0.15
_OF_DISK, _OF_FULL = 1.9, 0.3
#: Full pull: of the line's time for the compressed bytes, and of podman's.
_OF_LINE, _OF_PODMAN = 1.1, 1 / 3
#: Bytes over the link before the first result, of the pages that the command reads; storage of the trace, of the image.
_OF_PAGES, _STORAGE = 1.1, 0.03

#: A column of the table.
Column = dict[str, float | str]


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    command = ["python3", "-c", START.get(bench.env, "import sys; print(sys.version)")]
    data = bench.work / "data"
    with registry(bench.work / "near", data=data) as at:
        _, pinned = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        image_bytes = at.stored()
        traced = result(recorded(bench, at, pinned, command))
        trace_bytes = at.stored() - image_bytes
    remove(bench.work / "store")
    digest = pinned.rpartition("@")[2]
    repository = f"env/{bench.env}"
    columns: dict[str, Column] = {}
    with distant_registry(bench.work / "far", data=data, rate=_RATE) as far:
        rate = link_rate(far, repository)
        reference = f"{far.host}/{repository}@{digest}"
        root = peer_disk.unpack(bench, far, repository, digest)
        disk = _median([_disk(bench, root, command) for _ in range(_REPEAT)])
        columns["local disk"] = {
            "first result s": round(disk.first_output_s, 2),
            "CPU seconds": round(disk.cpu_seconds, 2),
        }
        remove(root)
        columns["ours traced"] = quick = middle([start(bench, far, data, reference, command) for _ in range(_REPEAT)])
        columns["ours lazy"] = middle(
            [start(bench, far, data, reference, command, trace="off") for _ in range(_REPEAT)]
        )
        columns["ours full"] = full = start(bench, far, data, reference, command, "--full")
        columns["podman"] = podman = _podman(bench, far, data, reference, command)
        columns["skopeo copy"] = _copy(bench, far, data, reference)

    first = {name: float(column["first result s"]) for name, column in columns.items() if "first result s" in column}
    pulled = float(full["mounted s"])
    line_s = float(full["MB fetched"]) / rate
    return Outcome(
        columns=columns,
        ratios={
            "ours traced / podman": first["ours traced"] / first["podman"],
            "ours lazy / podman": first["ours lazy"] / first["podman"],
            "MB, ours traced / podman": float(quick["MB fetched"]) / max(float(podman["MB fetched"]), 1e-6),
        },
        # The targets are those of an AI image; of a small one a start is mostly what a container costs.
        targets=[
            Target(
                name="traced / cold local disk", limit=_OF_DISK_TRACED, got=first["ours traced"] / disk.first_output_s
            ),
            Target(name="traced / ours full", limit=_OF_FULL_TRACED, got=first["ours traced"] / first["ours full"]),
            Target(name="lazy / cold local disk", limit=_OF_DISK, got=first["ours lazy"] / disk.first_output_s),
            Target(name="lazy / ours full", limit=_OF_FULL, got=first["ours lazy"] / first["ours full"]),
            Target(name="full pull / line", limit=_OF_LINE, got=pulled / line_s),
            Target(name="full pull / podman pull", limit=_OF_PODMAN, got=pulled / float(podman["pull s"])),
            Target(
                name="MB before the result, traced / pages read",
                limit=_OF_PAGES,
                got=float(quick["MB before it, as we say"]) * 1e6 / traced["page_bytes"],
            ),
            Target(name="storage of the trace / image", limit=_STORAGE, got=trace_bytes / image_bytes),
        ]
        if bench.env == "ai"
        else [Target(name="traced / ours full", limit=1, got=first["ours traced"] / first["ours full"])],
        notes=[
            f"link: tc tbf {_RATE}, {rate:.1f} MB/s of one plain ranged read",
            "MB fetched: what the link carried, headers included",
            f"median of {_REPEAT} for ours and local disk (chroot, no container); podman 4.3.1 with runc",
            "the registry's files are in its page cache: its disk is this machine's, and not what is measured",
            "all page cache dropped before each"
            if bench.exclusive
            else "page cache of the files in question dropped before each; machine shared",
        ],
    )


def recorded(bench: Bench, at: Registry, pinned: str, command: list[str]) -> Cost:
    state = bench.folder("state")
    environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
    environ["ENVBUILDER_REGISTRIES_INSECURE"] = at.host
    cost = envbuilder("trace", "--json", pinned, "--", *command, log=bench.log, environ=environ)
    remove(state)
    return cost


def start(
    bench: Bench, far: Registry, data: Path, reference: str, command: list[str], *flags: str, trace: str = "on"
) -> Column:
    state = bench.folder("state")
    report = bench.work / "report.json"
    environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
    environ["ENVBUILDER_REGISTRIES_INSECURE"] = far.host
    environ["ENVBUILDER_MOUNT_TRACE"] = trace
    _cold(bench, data)
    before = far.received()
    cost = envbuilder("run", "--report", report, *flags, reference, "--", *command, log=bench.log, environ=environ)
    column: Column = {
        "first result s": round(cost.first_output_s, 2),
        "ended s": round(cost.seconds, 2),
        "MB fetched": round((far.received() - before) / 1e6, 1),
        **cost.column(),
    }
    said = json.loads(report.read_text())
    column["MB before it, as we say"] = round(said["fetched_bytes"]["before_first_output"] / 1e6, 1)
    column["mounted s"] = round(said["seconds"]["mounted"], 2)
    column["how"] = said["how"]
    remove(state)
    if float(column["MB fetched"]) < 1:
        raise Unavailable(f"not a cold start: {column['MB fetched']} MB came over the link")
    return column


def _podman(bench: Bench, far: Registry, data: Path, reference: str, command: list[str]) -> Column:
    with Podman(bench) as podman:
        _cold(bench, data)
        before = far.received()
        pulled = podman.pull(reference)
        both = pulled + podman.run(reference, command)
        return {
            "first result s": round(both.first_output_s, 2),
            "ended s": round(both.seconds, 2),
            "MB fetched": round((far.received() - before) / 1e6, 1),
            **both.column(),
            "pull s": round(pulled.seconds, 2),
        }


def _copy(bench: Bench, far: Registry, data: Path, reference: str) -> Column:
    """The floor of any full pull: the blobs as files, nothing unpacked."""
    folder = bench.folder("copy")
    _cold(bench, data)
    before = far.received()
    words = ["copy", "--quiet", "--src-tls-verify=false", f"docker://{reference}", f"dir:{folder}"]
    try:
        cost = measured([tool("skopeo"), *words], log=bench.log)
    except Failed as error:
        return {"first result s": str(error).splitlines()[0]}
    remove(folder)
    return {"ended s": round(cost.seconds, 2), "MB fetched": round((far.received() - before) / 1e6, 1), **cost.column()}


def _cold(bench: Bench, data: Path) -> None:
    """Nothing of ours in memory; the registry's files in memory, as if its disk were not ours too."""
    bench.cold()
    warm(data)


def _disk(bench: Bench, root: Path, command: list[str]) -> Cost:
    bench.cold(root)
    return peer_disk.start(bench, root, command)


def link_rate(far: Registry, repository: str) -> float:
    blobs = far.data / "docker/registry/v2/blobs/sha256"
    largest = max(blobs.rglob("data"), key=lambda file: file.stat().st_size)
    return raw_rate(far, urllib.parse.quote(repository), f"sha256:{largest.parent.name}", largest.stat().st_size)


def _median(costs: list[Cost]) -> Cost:
    middle = statistics.median_low([cost.first_output_s for cost in costs])
    return next(cost for cost in costs if cost.first_output_s == middle)


def middle(columns: list[Column]) -> Column:
    seconds = statistics.median_low([float(column["first result s"]) for column in columns])
    return next(column for column in columns if column["first result s"] == seconds)
