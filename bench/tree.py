"""The whole tree of an image: its names cold, its bytes once they are here, and what the worker takes meanwhile.

Peer: the same tree unpacked on the local disk (ext4). Names: ``find -ls`` right after the mount, nothing fetched yet.
Bytes: the largest files, read whole, from a mount whose layers are complete: the second time, from memory.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

import peer_disk
from measure import measured
from product import build_to, envbuilder
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove
from servers import registry

SPACE = {"hello": 2_000_000_000, "standard": 14_000_000_000, "ai": 28_000_000_000}
_REPEAT = 3
#: Bytes of the largest files that are read.
_READ = 2_000_000_000
_BLOCK = 1 << 20
_LEAST_OF_DISK, _MOST_RSS_MB = 0.9, 150


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    with registry(bench.work / "near") as at:
        _, pinned = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        remove(bench.work / "store")
        repository, _, digest = pinned.partition("/")[2].partition("@")
        disk = peer_disk.unpack(bench, at, repository, digest)
        state = bench.folder("state")
        environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
        environ |= {"ENVBUILDER_REGISTRIES_INSECURE": at.host, "ENVBUILDER_MOUNT_BACKGROUND": "off"}
        at_dir = bench.folder("tree")

        def mounted(*flags: str) -> None:
            envbuilder("mount", *flags, pinned, at_dir, log=bench.log, environ=environ)

        def unmounted() -> None:
            envbuilder("unmount", at_dir, log=bench.log, environ=environ)

        names: dict[str, list[float]] = {"ours": [], "local disk": []}
        for _ in range(_REPEAT):
            mounted()
            names["ours"].append(_find(bench, at_dir))
            unmounted()
            names["local disk"].append(_find(bench, disk))
        mounted()
        files = _largest(disk)
        _read([at_dir / file for file in files])
        rss = _worker_rss_mb(bench, environ)
        unmounted()
        mounted("--full")
        ours = _cached([at_dir / file for file in files])
        unmounted()
        local = _cached([disk / file for file in files])
    ours_s, disk_s = statistics.median(names["ours"]), statistics.median(names["local disk"])
    return Outcome(
        columns={
            "ours": {"find -ls, cold s": round(ours_s, 3), "read MB/s": round(ours), "worker RSS MB": round(rss)},
            "local disk": {"find -ls, cold s": round(disk_s, 3), "read MB/s": round(local)},
        },
        ratios={"find: disk / ours": disk_s / ours_s, "read: ours / disk": ours / local},
        targets=[
            Target(name="find, cold / local disk", limit=1.0, got=ours_s / disk_s),
            Target(name="cached read / local disk", limit=_LEAST_OF_DISK, got=ours / local, at_least=True),
            Target(name="worker RSS MB", limit=_MOST_RSS_MB, got=rss),
        ],
        notes=[
            f"names: median of {_REPEAT}; bytes: {sum((disk / file).stat().st_size for file in files) / 1e6:.0f} MB",
            "page cache of the machine dropped before each find"
            if bench.exclusive
            else "inodes may be cached: shared machine",
        ],
    )


def _find(bench: Bench, folder: Path) -> float:
    bench.cold(folder)
    return measured(["find", folder, "-xdev", "-ls"], log=bench.log).seconds


def _largest(root: Path) -> list[Path]:
    """The largest files below ``root``, relative to it, of ``_READ`` bytes together."""
    found = []
    for folder, _, names in os.walk(root):
        for name in names:
            file = Path(folder) / name
            if file.is_file() and not file.is_symlink():
                found.append((file.stat().st_size, file.relative_to(root)))
    chosen, size = [], 0
    for bytes_, file in sorted(found, reverse=True):
        if size >= _READ:
            break
        chosen.append(file)
        size += bytes_
    return chosen


def _read(files: list[Path]) -> int:
    size, buffer = 0, bytearray(_BLOCK)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(buffer):
                size += count
    return size


def _cached(files: list[Path]) -> float:
    """MB/s from memory, which the first read has filled: the path to it is what differs."""
    _read(files)
    rates = []
    for _ in range(_REPEAT):
        begun = time.monotonic()
        rates.append(_read(files) / 1e6 / (time.monotonic() - begun))
    return statistics.median(rates)


def _worker_rss_mb(bench: Bench, environ: dict[str, str]) -> float:
    """Resident memory of the largest process behind the mount."""
    state = Path(environ["ENVBUILDER_STATE"])
    (file,) = (state / "mounts").glob("*/worker")
    pid = file.read_text().split()[0]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    bench.log.open("a").write(json.dumps({"VmHWM": status["VmHWM"]}) + "\n")
    return int(status["VmHWM"].split()[0]) / 1000
