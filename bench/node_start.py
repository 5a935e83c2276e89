"""Start of an image that is complete on this node: from the command to the first word of a shell in the container.

Beside it what nothing of ours can undercut: an interpreter that does nothing. Peer: ``podman run`` of the same image,
pulled before.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from measure import Cost, measured
from peer_podman import Podman
from product import build_to, envbuilder
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove
from servers import registry

SPACE = {"hello": 2_000_000_000, "standard": 14_000_000_000, "ai": 24_000_000_000}
_REPEAT = 7
_MOST_S = 0.1
_COMMAND = ["/bin/sh", "-c", "echo started"]


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    with registry(bench.work / "near") as at:
        _, pinned = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        remove(bench.work / "store")
        state = bench.folder("state")
        environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
        environ["ENVBUILDER_REGISTRIES_INSECURE"] = at.host
        report = bench.work / "report.json"

        def ours(*flags: str | Path) -> Cost:
            return envbuilder("run", *flags, pinned, "--", *_COMMAND, log=bench.log, environ=environ)

        ours("--full")
        columns = {"ours": _column(ours)}
        ours("--report", report)
        said = json.loads(report.read_text())
        columns["ours"]["mounted s"] = round(said["seconds"]["mounted"], 3)
        columns["ours"]["how"] = said["how"]
        columns["an interpreter"] = _column(lambda: measured([sys.executable, "-c", "print(1)"], log=bench.log))
        with Podman(bench) as podman:
            podman.pull(pinned)
            columns["podman"] = _column(lambda: podman.run(pinned, _COMMAND))
    first = {name: float(column["first word s"]) for name, column in columns.items()}
    return Outcome(
        columns=columns,
        ratios={"podman / ours": first["podman"] / first["ours"]},
        targets=[Target(name="first word s", limit=_MOST_S, got=first["ours"])],
        notes=[f"median of {_REPEAT}; the registry is on loopback"],
    )


def _column(start: Callable[[], Cost]) -> dict[str, float | str]:
    start()
    costs = [start() for _ in range(_REPEAT)]
    return {
        "first word s": round(statistics.median(cost.first_output_s for cost in costs), 3),
        "CPU seconds": round(statistics.median(cost.cpu_seconds for cost in costs), 3),
        "ended s": round(statistics.median(cost.seconds for cost in costs), 3),
    }
