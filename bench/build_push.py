"""From a warm artefact cache to "in the registry": ours, ``docker build`` + ``docker push``, buildah, and by hand.

Each contender has a fresh store and an empty registry but for its base image. The peers' base images hold the
locked debs already and are in the registry before the clock starts; "ours" makes and sends that part inside the
measured time, "ours, base there" starts as the peers do: layers of debs made and sent. Peers "from wheels" start from
what we start from; the others' uv has every wheel unpacked in its cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from contents import Contents, contents, fetch, files_by_digest
from measure import Cost
from peer_buildah import Buildah
from peer_docker import Docker
from peer_handmade import Handmade
from product import artefact_cache, build_to, lock_file
from record import Outcome, Target
from scratch import Bench, need_root, need_space, remove
from servers import Registry, registry

from envbuilder.digest import Digest
from envbuilder.layer.build import LocalFiles, build_layers, default_jobs
from envbuilder.layer.plan import DebPlan, plan
from envbuilder.lock.codec import load
from envbuilder.lock.model import Lock
from envbuilder.store.layout import LayoutTarget

#: Bytes of scratch space by environment: uv's cache, and each contender's tree, layers and registry in turn.
SPACE = {"hello": 3_000_000_000, "standard": 24_000_000_000, "ai": 36_000_000_000}
#: Promised: times faster than docker and than by hand, of the smallest image; MB of memory for build and push together.
_DOCKER, _BY_HAND, _IMAGE, _MEMORY_MB = 8, 1.5, 1.03, 1000


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    fetch(bench)
    made = contents(bench)
    columns: dict[str, dict[str, float | str]] = {}
    costs: dict[str, Cost] = {}

    for title in ("ours", "ours, base there"):
        with registry(bench.folder("registry")) as at:
            store = bench.folder("store")
            if title != "ours":
                _base(bench, store, at)
            base = at.stored()
            bench.cold(artefact_cache())
            before = at.cpu_seconds()
            costs[title], name = build_to(bench.env, store=store, host=at.host, log=bench.log)
            columns[title] = _column(costs[title], at, base, before)
            columns[title]["image MB"] = _image_mb(at, _repository(bench.env), name.rpartition("@")[2])
        for folder in ("store", "registry"):
            remove(bench.work / folder)

    peers: dict[str, tuple[str, Callable[[Bench, Contents, Registry], Docker | Buildah | Handmade]]] = {
        "by hand": ("handmade", Handmade),
        "by hand, from wheels": ("handmade", partial(Handmade, from_wheels=True)),
        "docker": ("docker", Docker),
        "docker, from wheels": ("docker", partial(Docker, from_wheels=True)),
        "buildah": ("buildah", Buildah),
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
            columns[title]["image MB"] = _image_mb(at, contender.repository, "1")
        for name in (folder, "registry"):
            remove(bench.work / name)

    ratios = {
        f"{peer} / {us}": costs[peer].seconds / costs[us].seconds
        for us in ("ours", "ours, base there")
        for peer in peers
    }
    smallest = min(float(columns[peer]["image MB"]) for peer in peers)
    size = float(columns["ours"]["image MB"]) / smallest
    return Outcome(
        columns=columns,
        ratios={**ratios, "image: ours / smallest": size},
        targets=[
            *(
                Target(name=f"{peer} / {us}", limit=limit, got=ratios[f"{peer} / {us}"], at_least=True)
                for peer, limit in (("docker", _DOCKER), ("by hand", _BY_HAND))
                for peer, us in ((peer, "ours"), (f"{peer}, from wheels", "ours, base there"))
            ),
            Target(name="image: ours / smallest", limit=_IMAGE, got=size),
            Target(name="our peak RSS, MB", limit=_MEMORY_MB, got=costs["ours"].peak_rss_mb),
        ],
        notes=[
            "docker: Debian's engine 20.10, BuildKit, uv inside, cache mounts warm, --compile-bytecode, gzip push",
            "buildah: 1.28 with chroot isolation, uv inside with a warm cache, --compile-bytecode, gzip push",
            "by hand: uv in a chroot with the same cache, tar | zstd -T0 -3, crane append",
            "'from wheels': uv's cache is empty, as ours has no wheel unpacked; the other peers' has them all",
            "peers, and 'ours, base there': what is of debs is made and pushed before the clock starts; 'ours' inside",
            "image MB: all layers of the manifest, the base's included, as they are in the registry",
        ],
    )


def _base(bench: Bench, store: Path, at: Registry) -> None:
    """Make our layers of debs, and send them."""
    locks = [_lock(bench.env)]
    while parent := locks[0].parent:
        locks.insert(0, _lock(parent.name))
    plans = [each for each in plan(locks) if isinstance(each, DebPlan)]
    artifacts = {artifact.digest: artifact for each in plans for artifact in each.artifacts}
    found = files_by_digest(artefact_cache(), artifacts.values())
    layout = LayoutTarget(store, create=True)
    files = LocalFiles({Digest("sha256:" + name): file for name, file in found.items()})
    for layer in build_layers(plans, layout, files, cache=artefact_cache(), jobs=default_jobs()):
        at.upload(_repository(bench.env), str(layer.blob.digest), layout.file_of(layer.blob))


def _lock(env: str) -> Lock:
    return load(lock_file(env).read_bytes(), source=env)


def _repository(env: str) -> str:
    return f"env/{env}"


def _image_mb(at: Registry, repository: str, reference: str) -> float:
    return round(at.image_size(repository, reference) / 1e6, 1)


def _column(cost: Cost, at: Registry, base: int, cpu_before: float) -> dict[str, float | str]:
    return {
        **cost.column(),
        "registry CPU s": round(at.cpu_seconds() - cpu_before, 2),
        "MB in registry": round((at.stored() - base) / 1e6, 1),
    }
