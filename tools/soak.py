"""Mount and unmount an image again and again; fail on a leaked mount, descriptor, process, file or megabyte.

    tools/soak.py --cycles 1000

Each cycle mounts a small image (every second one writable, every fifth with its worker killed), reads of it, and
unmounts; every fourth begins with an empty chunk store. All use one state directory, as on a node. A line of JSON
says what was seen.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

from envbuilder.mount.chunks.eviction import Quota, enforce
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.host.kernel import mount_points
from envbuilder.mount.mount import mount, open_mount
from envbuilder.mount.unmount import unmount
from envbuilder.testing.nodes import BIG, Node, make_node, push_test_image

#: KiB that this process, and that the kernel, may grow by over all cycles.
_OWN_KIB, _KERNEL_KIB = 1024, 64 * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--warm", type=int, default=20, help="cycles before, after which growth is a leak")
    arguments = parser.parse_args()
    cycles: int = arguments.cycles
    with tempfile.TemporaryDirectory(prefix="envbuilder-soak-") as folder:
        push_test_image(Path(folder, "layout"))
        node = make_node(Path(folder, "layout"), Path(folder))
        worker_kib, wrong = 0, 0
        for number in range(arguments.warm):
            cycle(node, number)
        before, begun = state(), time.monotonic()
        for number in range(cycles):
            right, kib = cycle(node, number)
            wrong += not right
            worker_kib = max(worker_kib, kib)
            if number % 100 == 99:
                print(f"{number + 1} cycles, {time.monotonic() - begun:.0f} s, {state()}", file=sys.stderr, flush=True)
        after = state()
        left = node.leftovers()
    problems = [f"wrong bytes in {wrong} cycles"] if wrong else []
    problems += [f"left: {item}" for item in left]
    problems += [
        f"{name}: {before[name]}, then {after[name]}"
        for name in ("mounts", "descriptors")
        if after[name] > before[name]
    ]
    if after["own_kib"] - before["own_kib"] > _OWN_KIB:
        problems.append(f"this process grew by {after['own_kib'] - before['own_kib']} KiB")
    if after["kernel_kib"] - before["kernel_kib"] > _KERNEL_KIB:
        problems.append(
            f"the kernel grew by {after['kernel_kib'] - before['kernel_kib']} KiB of memory that it cannot free"
        )
    seconds = time.monotonic() - begun
    print(
        json.dumps(
            {
                "cycles": cycles,
                "seconds_each": round(seconds / cycles, 3),
                "before": before,
                "after": after,
                "worker_kib": worker_kib,
                "problems": problems,
            }
        )
    )
    return 1 if problems else 0


def cycle(node: Node, number: int) -> tuple[bool, int]:
    """One mount, by ``mount`` or in a context; whether it read what was built, and KiB of its worker at the most."""
    writable, kill = number % 2 == 0, number % 5 == 0
    if number % 4 == 0:
        enforce(ChunkStore(node.settings.cache_dir / "chunks"), Quota(size=1))
    if number % 3:
        with open_mount(node.image, node.source, node.settings, writable=writable) as mounted:
            return look(mounted.directory, mounted.folder.worker_process()[0], kill=kill)
    directory = node.folder / "here"
    directory.mkdir(exist_ok=True)
    mounted = mount(node.image, node.source, node.settings, directory, writable=writable)
    try:
        return look(directory, mounted.folder.worker_process()[0], kill=kill)
    finally:
        unmount(directory, node.settings.state_dir)


def look(directory: Path, worker: int, *, kill: bool) -> tuple[bool, int]:
    kib = 0
    if worker:
        kib = resident_kib(worker)
        if kill:
            os.kill(worker, signal.SIGKILL)
    return (directory / "data/big").read_bytes() == BIG, kib


def resident_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def state() -> dict[str, int]:
    """What may leak: mounts, our descriptors, our memory (its peak), and memory that the kernel cannot give back."""
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return {
        "mounts": sum(point.source.startswith("envbuilder:") for point in mount_points()),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "own_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "kernel_kib": int(memory["SUnreclaim"].split()[0]),
    }


if __name__ == "__main__":
    sys.exit(main())
