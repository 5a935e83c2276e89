"""From a warm artefact cache to "in the registry": ours, ``docker build`` + ``docker push``, buildah, and by hand.

Each contender has a fresh store and an empty registry but for its base image. The peers' base images hold the
locked debs already and are in the registry before the clock starts; ours makes and sends that part inside the
measured time. The peers' uv has every wheel unpacked in its cache; ours starts from the wheels.
"""

from __future__ import annotations

import contextlib

from contents import contents, fetch
from measure import Cost
from peer_buildah import Buildah
from peer_docker import Docker
from peer_handmade import Handmade
from product import artefact_cache, build_to
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove
from servers import Registry, registry

#: Bytes of scratch space by environment: uv's cache, and each contender's tree, layers and registry in turn.
SPACE = {"hello": 3_000_000_000, "standard": 24_000_000_000, "ai": 36_000_000_000}
#: Peak memory of our build and push, MB.
_MEMORY_MB = 1000


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    fetch(bench)
    made = contents(bench)
    columns: dict[str, dict[str, float | str]] = {}
    costs: dict[str, Cost] = {}

    with registry(bench.folder("registry")) as at:
        bench.cold(artefact_cache())
        before = at.cpu_seconds()
        costs["ours"], _ = build_to(bench.env, store=bench.folder("store"), host=at.host, log=bench.log)
        columns["ours"] = _column(costs["ours"], at, 0, before)
    for name in ("store", "registry"):
        remove(bench.work / name)

    peers: dict[str, tuple[str, type[Docker | Buildah | Handmade]]] = {
        "docker": ("docker", Docker),
        "buildah": ("buildah", Buildah),
        "by hand": ("handmade", Handmade),
    }
    for title, (folder, peer) in peers.items():
        with registry(bench.folder("registry")) as at, contextlib.ExitStack() as ended:
            contender = peer(bench, made, at)
            ended.callback(contender.close)
            base = at.stored()
            bench.cold(made.uv_cache, made.wheels, made.root)
            before = at.cpu_seconds()
            build, push = contender.build(), contender.push()
            costs[title] = build + push
            columns[title] = {"build s": round(build.seconds, 2), "push s": round(push.seconds, 2)}
            columns[title] |= _column(costs[title], at, base, before)
        for name in (folder, "registry"):
            remove(bench.work / name)

    docker = costs["docker"].seconds / costs["ours"].seconds
    buildah = costs["buildah"].seconds / costs["ours"].seconds
    by_hand = costs["by hand"].seconds / costs["ours"].seconds
    return Outcome(
        columns=columns,
        ratios={"docker / ours": docker, "buildah / ours": buildah, "by hand / ours": by_hand},
        targets=[
            Target(name="docker build + push / ours", limit=4, got=docker, at_least=True),
            Target(name="by hand / ours", limit=1, got=by_hand, at_least=True),
            Target(name="our peak RSS, MB", limit=_MEMORY_MB, got=costs["ours"].peak_rss_mb),
        ],
        notes=[
            "docker: Debian's engine 20.10, BuildKit, uv inside, cache mounts warm, --compile-bytecode, gzip push",
            "buildah: 1.28 with chroot isolation, uv inside with a warm cache, --compile-bytecode, gzip push",
            "by hand: uv in a chroot with the same cache, tar | zstd -T0 -3, crane append",
            "peers: the base image with all debs is made and pushed before the clock starts; ours inside",
        ],
    )


def _column(cost: Cost, at: Registry, base: int, cpu_before: float) -> dict[str, float | str]:
    return {
        **cost.column(),
        "registry CPU s": round(at.cpu_seconds() - cpu_before, 2),
        "MB in registry": round((at.stored() - base) / 1e6, 1),
    }
