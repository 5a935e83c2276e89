"""One small package gets a new version: lock, build, push; seconds, and bytes that the registry had to take.

The project is copied and held at the version before, built and pushed; then the hold is removed and the package is
upgraded to what the committed lock has: here, and on a machine whose store and caches are empty. The peer is the
hand-made pipeline, whose one layer is new as a whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from contents import contents, fetch
from measure import Cost
from peer_handmade import Handmade
from product import build_to, copy_project, envbuilder, held, lock_file, result
from record import Outcome, Target
from scratch import Bench, Unavailable, need_root, need_space, remove
from servers import registry

from envbuilder.lock.codec import load

SPACE = {"hello": 2_000_000_000, "standard": 16_000_000_000, "ai": 24_000_000_000}
#: A small pure-Python package of each environment, with several releases.
PACKAGE = {"hello": "tzdata", "standard": "pip", "ai": "idna"}
#: Seconds of lock + build + push, and megabytes sent, at most.
_SECONDS, _MEGABYTES = 5, 5
#: The same with nothing here, and megabytes of artefacts fetched: the bucket's, and the interpreter that compiles.
_BARE_SECONDS, _BARE_MEGABYTES = 15, 12


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    package = PACKAGE[bench.env]
    project = copy_project(bench)
    fetch(bench)
    newest = _version(lock_file(bench.env), package)
    declaration = project / "images" / bench.env / "env.toml"
    original = declaration.read_text()
    store = bench.folder("store")
    with registry(bench.folder("registry")) as at:
        declaration.write_text(held(original, package, newest))
        envbuilder("lock", bench.env, "--project", project, "--quiet", log=bench.log)
        old = _version(lock_file(bench.env, project), package)
        build_to(bench.env, store=store, host=at.host, log=bench.log, project=project)
        before = at.stored()

        declaration.write_text(original)
        bare, fetched, bare_sent = _bare(bench, project, at.data)
        words = ("lock", bench.env, "--upgrade-package", package, "--project", project, "--json")
        lock = envbuilder(*words, log=bench.log)
        build, _ = build_to(bench.env, store=store, host=at.host, log=bench.log, project=project)
        sent = (at.stored() - before) / 1e6
    new = _version(lock_file(bench.env, project), package)
    if old == new:
        raise Unavailable(f"--upgrade-package {package} left it at {old}")
    for name in ("store", "registry"):
        remove(bench.work / name)
    by_hand, by_hand_sent = _by_hand(bench)
    ours, said = lock + build, result(build)[0]["copied_bytes"] / 1e6
    return Outcome(
        columns={
            "ours": {
                "lock s": round(lock.seconds, 2),
                "build and push s": round(build.seconds, 2),
                **ours.column(),
                "MB sent": round(sent, 3),
                "MB sent, as we say": round(said, 3),
            },
            "ours, nothing here": {
                **bare.column(),
                "MB of artefacts fetched": round(fetched, 3),
                "MB sent": round(bare_sent, 3),
            },
            "by hand": {
                "build and push s": round(by_hand.seconds, 2),
                **by_hand.column(),
                "MB sent": round(by_hand_sent, 3),
            },
        },
        ratios={
            "by hand / ours, seconds": by_hand.seconds / ours.seconds,
            "by hand / ours, bytes": by_hand_sent / max(sent, 1e-6),
        },
        targets=[
            Target(name="lock + build + push, s", limit=_SECONDS, got=ours.seconds),
            Target(name="MB sent", limit=_MEGABYTES, got=sent),
            Target(name="nothing here: lock + build + push, s", limit=_BARE_SECONDS, got=bare.seconds),
            Target(name="nothing here: MB of artefacts fetched", limit=_BARE_MEGABYTES, got=fetched),
        ],
        notes=[f"{package} {old} -> {new}", "by hand: no lock step; its base image is in the registry already"],
    )


def _bare(bench: Bench, project: Path, data: Path) -> tuple[Cost, float, float]:
    """Lock, build and push with empty store and caches, beside a copy of the registry; megabytes fetched and sent."""
    copied, cache = bench.work / "bare-registry", bench.folder("bare-cache")
    shutil.copytree(data, copied / "data", copy_function=_linked)
    project = shutil.copytree(project, bench.work / "bare-project")
    environ = {"ENVBUILDER_CACHE": str(cache), "UV_CACHE_DIR": str(cache / "uv")}
    with registry(copied) as at:
        before = at.stored()
        words = ("lock", bench.env, "--upgrade-package", PACKAGE[bench.env], "--project", project, "--json")
        cost = envbuilder(*words, log=bench.log, environ=environ)
        store = bench.folder("bare-store")
        build, _ = build_to(bench.env, store=store, host=at.host, log=bench.log, project=project, environ=environ)
        sent = at.stored() - before
    fetched = sum(file.stat().st_size for file in (cache / "sha256").rglob("*") if file.is_file())
    for path in (copied, cache, project, store):
        remove(path)
    return cost + build, fetched / 1e6, sent / 1e6


def _linked(source: str, target: str) -> None:
    """Blobs are never written again; links to them, which tags are, may be."""
    (os.link if Path(source).name == "data" else shutil.copy2)(source, target)


def _by_hand(bench: Bench) -> tuple[Cost, float]:
    made = contents(bench)
    with registry(bench.folder("registry")) as at:
        peer = Handmade(bench, made, at)
        base = at.stored()
        cost = peer.build() + peer.push()
        return cost, (at.stored() - base) / 1e6


def _version(lock: Path, package: str) -> str:
    found = [wheel.version for wheel in load(lock.read_bytes(), source=lock.name).wheels if wheel.name == package]
    if not found:
        raise Unavailable(f"{lock}: no {package} in it; name another package in bump.py")
    return found[0]
