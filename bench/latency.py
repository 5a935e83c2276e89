"""First result of a command, with a trace, from a registry that is 0, 10 and 50 ms of round trip away.

There is no netem on the bench hosts: a proxy of ours gives every byte on half a round trip later, in both directions,
and takes any number of connections. TCP's own slow start is not slowed by it, which is in our favour on long lines.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from delay import delaying_proxy
from product import START, build_to, envbuilder
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove, warm
from servers import registry

SPACE = {"hello": 1_000_000_000, "standard": 9_000_000_000, "ai": 14_000_000_000}
_ROUND_TRIPS_MS = (0, 10, 50)
_REPEAT = 5
#: Round trips that a start may take longer, by their length in ms (issue: 2 at 10 ms, 6 at 50 ms).
_MOST = {10: 2, 50: 6}


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    command = ["python3", "-c", START.get(bench.env, "import sys; print(sys.version)")]
    data = bench.work / "data"
    columns: dict[str, dict[str, float | str]] = {}
    with registry(bench.work / "near", data=data) as at:
        _, pinned = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        remove(bench.work / "store")
        envbuilder("trace", pinned, "--", *command, log=bench.log, environ=_environ(bench.folder("state"), at.host))
        repository_digest = pinned.partition("/")[2]
        warm(data)
        # In turn, so that what else the machine does meets all of them.
        found: dict[int, list[float]] = {ms: [] for ms in _ROUND_TRIPS_MS}
        for _ in range(_REPEAT):
            for ms in _ROUND_TRIPS_MS:
                with delaying_proxy(at.host, round_trip_s=ms / 1000) as host:
                    state = bench.folder("state")
                    report = bench.work / "report.json"
                    envbuilder(
                        *("run", "--report", report, f"{host}/{repository_digest}", "--", *command),
                        log=bench.log,
                        environ=_environ(state, host),
                    )
                    found[ms].append(json.loads(report.read_text())["seconds"]["first_output"])
                    remove(state)
    near = statistics.median(found[0])
    for ms, seconds in found.items():
        columns[f"{ms} ms"] = {"first result s": round(statistics.median(seconds), 3)}
        if ms:
            columns[f"{ms} ms"]["round trips more"] = round((statistics.median(seconds) - near) * 1000 / ms, 1)
    return Outcome(
        columns=columns,
        ratios={},
        targets=[
            Target(name=f"round trips more at {ms} ms", limit=most, got=float(columns[f"{ms} ms"]["round trips more"]))
            for ms, most in _MOST.items()
        ],
        notes=[f"median of {_REPEAT}, in turn; the proxy delays, it does not limit"],
    )


def _environ(state: Path, host: str) -> dict[str, str]:
    environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
    return {**environ, "ENVBUILDER_REGISTRIES_INSECURE": host}
