"""One large blob, and 60 layers of mixed sizes, to a registry and back: ours, skopeo and crane in one run.

``--env big`` moves one blob of 4 GB alone, ``--env hello`` (the default) one of 1 GB and 60 layers of 1.2 GB.
The registry is Debian's on loopback; each contender has an empty one. Bytes are random: nothing compresses.
Each round begins with another contender, since whoever comes first may pay for memory that the page cache gets
anew; what counts is the median of the rounds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from measure import Cost, measured
from product import COMMAND
from record import Outcome, Target
from scratch import Bench, need_space, remove, tool, warm
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


#: Each contender is the first, the second and the third twice: single runs differ by more than the peers do.
_ROUNDS = 6


def run(bench: Bench) -> Outcome:
    size = _BLOB.get(bench.env, _USUAL)
    need_space(bench.work, 3 * size + (6 << 30))
    costs: dict[tuple[str, str], list[Cost]] = {}
    images = {"blob": [size], **({} if bench.env == "big" else {"mixed": _MIXED})}
    contenders = list(_contenders(bench).items())
    for name, sizes in images.items():
        layout = bench.folder("layout")
        make_layout(layout, sizes)
        # Our layouts are written past the page cache: who pushes first would read it from the disk for all others.
        warm(layout)
        for first in range(_ROUNDS):
            turn = first % len(contenders)
            for title, (push, pull) in contenders[turn:] + contenders[:turn]:
                with registry(bench.folder("registry")) as at:
                    costs.setdefault((title, f"{name} up"), []).append(push(layout, at))
                    costs.setdefault((title, f"{name} down"), []).append(pull(at, bench.folder("out")))
                for folder in ("registry", "out"):
                    remove(bench.work / folder)
        remove(layout)
    return _outcome(costs, size)


def _outcome(costs: dict[tuple[str, str], list[Cost]], size: int) -> Outcome:
    columns: dict[str, dict[str, float | str]] = {}
    for (title, step), rounds in costs.items():
        column = columns.setdefault(title, {})
        column[f"{step} s"] = round(_seconds(rounds), 2)
        column[f"{step} s, of"] = " ".join(f"{cost.seconds:.2f}" for cost in rounds)
        column[f"{step} CPU s"] = round(_cpu_seconds(rounds), 2)
        column[f"{step} RSS MB"] = round(_peak_mb(rounds))
    ratios, targets = {}, []
    for step in [step for title, step in costs if title == "ours"]:
        ours = costs["ours", step]
        for peer in ("skopeo", "crane"):
            ratio = _seconds(costs[peer, step]) / _seconds(ours)
            ratios[f"{step}: {peer} / ours"] = ratio
            targets.append(Target(name=f"{step}: {peer} / ours", limit=1, got=ratio, at_least=True))
        cpu = _cpu_seconds(costs["skopeo", step]) / _cpu_seconds(ours)
        targets.append(Target(name=f"{step}: CPU, skopeo / ours", limit=1, got=cpu, at_least=True))
        targets.append(Target(name=f"{step}: our peak RSS, MB", limit=_MEMORY_MB, got=_peak_mb(ours)))
    notes = [
        f"the large blob has {size / 1e9:.1f} GB; medians of {_ROUNDS} rounds, each begun by another contender",
        "down, all write a layout of one file a blob and hash what they got; ours and skopeo fsync it, crane does not",
        "up, skopeo hashes what it sends; ours and crane leave that to the registry, which does",
    ]
    return Outcome(columns=columns, ratios=ratios, targets=targets, notes=notes)


def _seconds(rounds: Sequence[Cost]) -> float:
    return median(cost.seconds for cost in rounds)


def _cpu_seconds(rounds: Sequence[Cost]) -> float:
    return median(cost.cpu_seconds for cost in rounds)


def _peak_mb(rounds: Sequence[Cost]) -> float:
    return max(cost.peak_rss_mb for cost in rounds)


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
