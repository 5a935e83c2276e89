"""One large blob, and 60 layers of mixed sizes, to a registry and back: ours, skopeo and crane in one run.

``--env big`` moves one blob of 4 GB alone, ``--env hello`` (the default) one of 1 GB and 60 layers of 1.2 GB.
The registry is Debian's on loopback; each contender has an empty one. Bytes are random: nothing compresses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from measure import Cost, measured
from product import COMMAND
from record import Outcome, Target
from scratch import Bench, need_space, remove, tool
from servers import Registry, registry

from envbuilder.digest import Descriptor, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.layout import LayoutTarget

#: Bytes of the large blob, and of the mixed layers: most are small, a few hold most of the bytes.
_BLOB = {"big": 4 << 30}
_USUAL = 1 << 30
_MIXED = [200 << 20] * 4 + [24 << 20] * 12 + [2 << 20] * 24 + [64 << 10] * 20
#: Peak memory of one of our commands, MB.
_MEMORY_MB = 100.0


def run(bench: Bench) -> Outcome:
    size = _BLOB.get(bench.env, _USUAL)
    need_space(bench.work, 3 * size + (6 << 30))
    columns: dict[str, dict[str, float | str]] = {}
    costs: dict[tuple[str, str], Cost] = {}
    images = {"blob": [size], **({} if bench.env == "big" else {"mixed": _MIXED})}
    for name, sizes in images.items():
        layout = bench.folder("layout")
        make_layout(layout, sizes)
        for title, (push, pull) in _contenders(bench).items():
            with registry(bench.folder("registry")) as at:
                up = push(layout, at)
                down = pull(at, bench.folder("out"))
            costs[title, f"{name} up"], costs[title, f"{name} down"] = up, down
            column = columns.setdefault(title, {})
            for way, cost in (("up", up), ("down", down)):
                column[f"{name} {way} s"] = round(cost.seconds, 2)
                column[f"{name} {way} CPU s"] = round(cost.cpu_seconds, 2)
                column[f"{name} {way} RSS MB"] = round(cost.peak_rss_mb)
            for folder in ("registry", "out"):
                remove(bench.work / folder)
        remove(layout)
    return _outcome(columns, costs, size)


def _outcome(columns: dict[str, dict[str, float | str]], costs: dict[tuple[str, str], Cost], size: int) -> Outcome:
    ratios, targets = {}, []
    for step in [step for title, step in costs if title == "ours"]:
        ours = costs["ours", step]
        for peer in ("skopeo", "crane"):
            ratio = costs[peer, step].seconds / ours.seconds
            ratios[f"{step}: {peer} / ours"] = ratio
            targets.append(Target(name=f"{step}: {peer} / ours", limit=1, got=ratio, at_least=True))
        cpu = costs["skopeo", step].cpu_seconds / ours.cpu_seconds
        targets.append(Target(name=f"{step}: CPU, skopeo / ours", limit=1, got=cpu, at_least=True))
        targets.append(Target(name=f"{step}: our peak RSS, MB", limit=_MEMORY_MB, got=ours.peak_rss_mb))
    notes = [
        f"the large blob has {size / 1e9:.1f} GB",
        "crane pull --format=oci and skopeo write layouts, as ours does",
    ]
    return Outcome(columns=columns, ratios=ratios, targets=targets, notes=notes)


_Push = Callable[[Path, Registry], Cost]
_Pull = Callable[[Registry, Path], Cost]


def _contenders(bench: Bench) -> dict[str, tuple[_Push, _Pull]]:
    environ = {"ENVBUILDER_CACHE": str(bench.folder("cache"))}
    skopeo, crane = tool("skopeo"), tool("crane")

    def measure(*words: str | Path) -> Cost:
        # What was written before is written out first: else the first contender pays for the disk of the set-up.
        os.sync()
        return measured(words, log=bench.log, environ=environ)

    return {
        "ours": (
            lambda layout, at: measure(COMMAND, "copy", f"oci:{layout}:1", f"{at.host}/b/ours:1", "--quiet"),
            lambda at, out: measure(COMMAND, "copy", f"{at.host}/b/ours:1", f"oci:{out}:1", "--quiet"),
        ),
        "skopeo": (
            lambda layout, at: measure(
                skopeo, "copy", "--dest-tls-verify=false", f"oci:{layout}:1", f"docker://{at.host}/b/s:1"
            ),
            lambda at, out: measure(
                skopeo, "copy", "--src-tls-verify=false", f"docker://{at.host}/b/s:1", f"oci:{out}:1"
            ),
        ),
        "crane": (
            lambda layout, at: measure(crane, "push", "--insecure", layout, f"{at.host}/b/c:1"),
            lambda at, out: measure(crane, "pull", "--insecure", "--format=oci", f"{at.host}/b/c:1", out),
        ),
    }


def make_layout(folder: Path, sizes: list[int]) -> None:
    """A layout with an image whose layers have ``sizes`` random bytes."""
    layout = LayoutTarget(folder, create=True)
    layers = tuple(_layer(layout, size) for size in sizes)
    config = (
        b'{"architecture":"amd64","config":{},"os":"linux","rootfs":{"diff_ids":[%s],"type":"layers"}}'
        % b",".join(b'"%s"' % str(layer.digest).encode() for layer in layers)
    )
    described = describe(config, media_types.OCI_CONFIG)
    manifest = Manifest(config=described, layers=layers).dump()
    root = describe(manifest, media_types.OCI_MANIFEST)
    for what, data in ((described, config), (root, manifest)):
        with layout.begin() as writer:
            writer.write(data)
            writer.commit(what)
    layout.tag(root, "1")


def _layer(layout: LayoutTarget, size: int) -> Descriptor:
    with layout.begin() as writer:
        block = os.urandom(1 << 20)
        while writer.size < size:
            # A fresh start of each block is enough to make it another one.
            piece = os.urandom(64) + block[64:]
            writer.write(piece[: size - writer.size])
        what = Descriptor(media_type=media_types.OCI_LAYER_TAR, digest=writer.digest, size=size)
        writer.commit(what)
    return what
