"""One small package gets a new version: lock, build, push; seconds, and bytes that the registry had to take.

The project is copied and held at the version before, built and pushed; then the hold is removed and the package is
upgraded to what the committed lock has. The peer is the hand-made pipeline, whose one layer is new as a whole.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from contents import contents
from measure import Cost
from peer_handmade import Handmade
from product import artefact_cache, build_and_push, envbuilder, lock_file, result
from record import PROJECT, Outcome, Target
from scratch import Bench, Unavailable, need_root, need_space, remove
from servers import registry

from envbuilder.lock.codec import load

SPACE = {"hello": 2_000_000_000, "standard": 16_000_000_000, "ai": 24_000_000_000}
#: A small pure-Python package of each environment, with several releases.
PACKAGE = {"hello": "tzdata", "standard": "pip", "ai": "idna"}
#: Seconds of lock + build + push, and megabytes sent, at most.
_SECONDS, _MEGABYTES = 10, 10


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    package = PACKAGE[bench.env]
    project = bench.folder("project")
    for name in ("images", "lockfiles"):
        shutil.copytree(PROJECT / name, project / name)
    new = _version(lock_file(bench.env), package)
    # The new wheel is in the artefact cache before the clock starts, as in the other scenarios.
    store = bench.folder("store")
    envbuilder("build", bench.env, "--quiet", "--store", store, log=bench.log)
    with registry(bench.folder("registry")) as at:
        declaration = project / "images" / bench.env / "env.toml"
        original = declaration.read_text()
        declaration.write_text(
            re.sub(r"(?m)^requires = \[", f'requires = [\n    "{package}<{new}",', original, count=1)
        )
        envbuilder("lock", bench.env, "--project", project, "--quiet", log=bench.log)
        old = _version(lock_file(bench.env, project), package)
        if old == new:
            raise Unavailable(f"{package}<{new} did not move {package}: see {declaration}")
        # A fresh store: nothing of the new version may be known to it.
        remove(store)
        store.mkdir()
        build_and_push(bench.env, store=store, host=at.host, log=bench.log, project=project)
        stored = at.stored()

        declaration.write_text(original)
        words = ("lock", bench.env, "--upgrade-package", package, "--project", project, "--json")
        lock = envbuilder(*words, log=bench.log)
        build, push, _ = build_and_push(bench.env, store=store, host=at.host, log=bench.log, project=project)
        sent = (at.stored() - stored) / 1e6
        said = result(push).get("copied_bytes", -1) / 1e6
    for name in ("store", "registry"):
        remove(bench.work / name)
    ours = lock + build + push
    changed = _version(lock_file(bench.env, project), package)
    if changed == old:
        raise Unavailable(f"--upgrade-package {package} left it at {old}")
    peer, peer_sent = _by_hand(bench)
    return Outcome(
        columns={
            "ours": {
                **_steps(lock, build, push),
                **ours.column(),
                "MB sent": round(sent, 2),
                "MB sent, as push says": round(said, 2),
            },
            "by hand": {
                **_steps(None, peer[0], peer[1]),
                **(peer[0] + peer[1]).column(),
                "MB sent": round(peer_sent, 2),
            },
        },
        ratios={
            "by hand / ours, seconds": (peer[0] + peer[1]).seconds / ours.seconds,
            "by hand / ours, bytes": peer_sent / max(sent, 1e-6),
        },
        targets=[
            Target(name="lock + build + push, s", limit=_SECONDS, got=ours.seconds),
            Target(name="MB sent", limit=_MEGABYTES, got=sent),
        ],
        notes=[f"{package} {old} -> {changed}", "by hand: no lock step; its base image is in the registry already"],
    )


def _by_hand(bench: Bench) -> tuple[tuple[Cost, Cost], float]:
    made = contents(bench, artefact_cache())
    with registry(bench.folder("registry")) as at:
        peer = Handmade(bench, made, at)
        base = at.stored()
        costs = peer.build(), peer.push()
        return costs, (at.stored() - base) / 1e6


def _version(lock: Path, package: str) -> str:
    found = [wheel.version for wheel in load(lock.read_bytes(), source=lock.name).wheels if wheel.name == package]
    if not found:
        raise Unavailable(f"{lock}: no {package} in it; name another package in bump.py")
    return found[0]


def _steps(lock: Cost | None, build: Cost, push: Cost) -> dict[str, float | str]:
    first: dict[str, float | str] = {"lock s": round(lock.seconds, 2)} if lock else {}
    return {**first, "build s": round(build.seconds, 2), "push s": round(push.seconds, 2)}
