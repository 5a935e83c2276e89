"""First result of a command from a registry on loopback: with a trace, without, and after a full pull.

"Never above 1.0 of our own full pull on any link": here the link costs nothing, so that what lazy start itself costs
is all that is left. The three take turns, so that what else the machine does meets each alike. Peer: ``podman pull``
and ``podman run`` of the same image, once; at 1 Gbit/s the link sets how many times faster than podman one can be.
"""

from __future__ import annotations

import json
import statistics

from peer_podman import Podman
from product import START, build_to, envbuilder, result
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove, warm
from servers import Registry, registry

SPACE = {"hello": 2_000_000_000, "standard": 18_000_000_000, "ai": 28_000_000_000}
_REPEAT = {"ai": 3}
_USUAL_REPEAT = 7
#: Times that our full pull is faster than podman's (issue).
_OF_PODMAN = 3
_WAYS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "traced": ((), {}),
    "untraced": ((), {"ENVBUILDER_MOUNT_TRACE": "off"}),
    "full": (("--full",), {}),
}


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    command = ["python3", "-c", START.get(bench.env, "import sys; print(sys.version)")]
    with registry(bench.work / "near") as at:
        _, pinned = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        remove(bench.work / "store")
        environ = _fresh(bench, at)
        result(envbuilder("trace", "--json", pinned, "--", *command, log=bench.log, environ=environ))
        found: dict[str, list[dict[str, float]]] = {way: [] for way in _WAYS}
        repeat = _REPEAT.get(bench.env, _USUAL_REPEAT)
        for _ in range(repeat):
            for way in _WAYS:
                found[way].append(_start(bench, at, pinned, command, way))
        remove(bench.work / "state")
        podman = _podman(bench, at, pinned, command)
    columns = {
        way: {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
        for way, rounds in found.items()
    }
    columns["podman"] = podman
    first = {way: column["first result s"] for way, column in columns.items()}
    pulls = podman["mounted s"] / columns["full"]["mounted s"]
    return Outcome(
        columns={way: dict(column) for way, column in columns.items()},
        ratios={
            "full / traced": first["full"] / first["traced"],
            "podman / traced": first["podman"] / first["traced"],
            "podman / full": first["podman"] / first["full"],
        },
        targets=[
            Target(name="traced / full", limit=1.0, got=first["traced"] / first["full"]),
            Target(name="untraced / full", limit=1.0, got=first["untraced"] / first["full"]),
            Target(name="pull: podman / full", limit=_OF_PODMAN, got=pulls, at_least=True),
        ],
        notes=[
            f"ours: median of {repeat} each, in turns; the registry is on loopback, its files in the page cache",
            "podman, once: what is mounted is what is pulled",
        ],
    )


def _podman(bench: Bench, at: Registry, pinned: str, command: list[str]) -> dict[str, float]:
    with Podman(bench) as podman:
        bench.cold(at.data)
        warm(at.data)
        pulled = podman.pull(pinned)
        both = pulled + podman.run(pinned, command)
    return {
        "first result s": round(both.first_output_s, 3),
        "mounted s": round(pulled.seconds, 3),
        "CPU seconds": round(both.cpu_seconds, 3),
    }


def _fresh(bench: Bench, at: Registry) -> dict[str, str]:
    state = bench.folder("state")
    environ = {f"ENVBUILDER_{name}": str(state / name.lower()) for name in ("STATE", "CHUNKS", "STORE", "CACHE")}
    return environ | {"ENVBUILDER_REGISTRIES_INSECURE": at.host}


def _start(bench: Bench, at: Registry, pinned: str, command: list[str], way: str) -> dict[str, float]:
    flags, extra = _WAYS[way]
    report = bench.work / "report.json"
    environ = _fresh(bench, at) | extra
    bench.cold(at.data)
    warm(at.data)
    cost = envbuilder("run", "--report", report, *flags, pinned, "--", *command, log=bench.log, environ=environ)
    said = json.loads(report.read_text())
    return {
        "first result s": cost.first_output_s,
        "mounted s": said["seconds"]["mounted"],
        "blocked s": said["blocked_s"],
        "CPU seconds": cost.cpu_seconds,
        "MB before it": said["fetched_bytes"]["before_first_output"] / 1e6,
    }
