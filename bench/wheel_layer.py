"""From a wheel to its layer in a store, against what the machine's cores could do at most.

The limit is made in the same run from single-core rates on the wheel's own bytes: everything that a layer has to
have done to it (inflate, hashes, zstd, compiling its modules), added up and divided by the cores. What is left is
ours: tar headers, copies, the file system, waiting. Each wheel is built alone, then all of them as one build.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import zstandard
from contents import fetch, files_by_digest
from measure import Cost, measured
from product import artefact_cache, lock_file
from record import PROJECT, Outcome, Target
from scratch import Bench, Unavailable, remove, warm

from envbuilder.digest import BLOCK_SIZE, Digest
from envbuilder.layer import pages
from envbuilder.layer.build import LocalFiles, build_layers, default_jobs, find_layer
from envbuilder.layer.chunks import index_range, open_index
from envbuilder.layer.compile_server import close_idle
from envbuilder.layer.frames import CHUNK_SIZE, LEVEL
from envbuilder.layer.interpreter import interpreter_packages
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import Compilation, WheelPlan
from envbuilder.layer.prefix import PREFIX
from envbuilder.layer.zip import Archive
from envbuilder.lock.codec import load
from envbuilder.store.layout import LayoutTarget

#: What is built by environment: mixed and large, CUDA libraries alone, much Python, pure Python.
WHEELS = {
    "ai": ("torch", "nvidia-cudnn-cu13", "transformers", "sympy"),
    "hello": ("numpy", "pandas"),
}
#: Bytes of a layer that rates are taken from, evenly spread: all of most layers.
_SAMPLE = 256 << 20
#: Bytes of a local header of a zip without its names (APPNOTE.TXT 4.3.7).
_LOCAL_SIZE = 30
#: Promised: of the limit, and MB of memory at most.
_SHARE, _MEMORY_MB = 0.85, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Single-core CPU seconds that a layer cannot do without."""

    inflate: float = 0.0
    zstd: float = 0.0
    sha256: float = 0.0  # of each member (RECORD), of the tar (diff_id), of each frame and of the blob
    pages: float = 0.0  # sha256 of each page of 4 KiB
    compile: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, one.name) for one in fields(self))

    def __add__(self, other: Work) -> Work:
        return Work(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})


def run(bench: Bench) -> Outcome:
    if bench.env not in WHEELS:
        raise Unavailable(f"no wheels chosen for {bench.env}: want one of {', '.join(WHEELS)}")
    fetch(bench)
    names, cores = WHEELS[bench.env], default_jobs()
    columns: dict[str, dict[str, float | str]] = {}
    works: list[Work] = []
    peak = 0.0
    least = 1.0
    for group in (*((name,) for name in names), names):
        seconds, cost = _built(bench, group)
        title = group[0] if len(group) == 1 else "all"
        if len(group) == 1:
            works.append(_work(bench.env, group[0], LayoutTarget(bench.work / "store")))
        work = works[-1] if len(group) == 1 else sum(works, Work())
        share = work.total / cores / seconds
        columns[title] = {
            "seconds": seconds,
            "limit s": round(work.total / cores, 2),
            "of the limit": round(share, 3),
            **{f"core s {name}": round(value, 2) for name, value in asdict(work).items()},
            "CPU seconds": cost.cpu_seconds,
            "limit / CPU": round(work.total / cost.cpu_seconds, 3),
            "cores used": round(cost.cpu_seconds / seconds, 2),
            "peak RSS MB": round(cost.peak_rss_mb),
            "peak private MB": round(cost.peak_private_mb),
        }
        least = min(least, share)
        if len(group) == 1:
            peak = max(peak, cost.peak_rss_mb)
        remove(bench.work / "store")
    return Outcome(
        columns=columns,
        ratios={f"of the limit, {name}": float(column["of the limit"]) for name, column in columns.items()},
        targets=[
            Target(name="of the limit, worst", limit=_SHARE, got=least, at_least=True),
            Target(name="peak RSS of any package's processes, MB", limit=_MEMORY_MB, got=peak),
        ],
        notes=[
            f"{cores} cores; zstd level {LEVEL} in frames of {CHUNK_SIZE >> 10} KiB",
            "rates: CPU time of one thread on the layer's own bytes; compile: the image's interpreter on all modules",
            "seconds: build_layers from warm files to the committed blob, start of its processes included",
        ],
    )


def _built(bench: Bench, names: Sequence[str]) -> tuple[float, Cost]:
    """Build into a fresh store, in a process of its own: wall clock and CPU time of the build, and its memory."""
    store = bench.folder("store")
    words = [sys.executable, __file__, bench.env, store, *names]
    cost = measured(words, log=bench.log, environ={"PYTHONPATH": str(PROJECT)})
    seconds, cpu_seconds = map(float, cost.stdout.split())
    return seconds, replace(cost, cpu_seconds=cpu_seconds)


def _build(env: str, folder: str, *names: str) -> None:
    """What is measured, as a program: it says the seconds from warm files to committed blobs, and those of CPU."""
    plans, files = _plans(env, names)
    for file in files.files.values():
        warm(file)
    store = LayoutTarget(Path(folder), create=True)
    started, before = time.monotonic(), sum(os.times()[:4])
    build_layers(plans, store, files, cache=artefact_cache(), jobs=default_jobs())
    print(round(time.monotonic() - started, 3), round(sum(os.times()[:4]) - before, 2))


def _plans(env: str, names: Sequence[str]) -> tuple[tuple[WheelPlan, ...], LocalFiles]:
    """A layer for each wheel, and where their artefacts are."""
    lock = load(lock_file(env).read_bytes(), source=env)
    compilation = Compilation(
        python=lock.python, platform=lock.platform, packages=interpreter_packages(lock.debs, lock.python)
    )
    by_name = {wheel.name: wheel for wheel in lock.wheels}
    plans = tuple(WheelPlan(id=f"bench/{name}", wheels=(by_name[name],), compilation=compilation) for name in names)
    found = files_by_digest(artefact_cache(), [artifact for each in plans for artifact in each.artifacts])
    return plans, LocalFiles({Digest("sha256:" + name): file for name, file in found.items()})


def _work(env: str, name: str, store: LayoutTarget) -> Work:
    """What the layer of ``name``, which is in ``store``, costs one core at least."""
    (each,), files = _plans(env, [name])
    layer = find_layer(each, store)
    assert layer is not None, name
    wheel = files.file(each.wheels[0])
    inflate, recorded = _members(wheel)
    frames = _frames(store, layer)
    chunks = [zstandard.ZstdDecompressor().decompress(frame) for frame in frames]
    scale = layer.tar_size / sum(map(len, chunks))
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
    return Work(
        inflate=inflate,
        zstd=scale * _seconds(compressor.compress, chunks),
        sha256=recorded + scale * _seconds(lambda part: hashlib.sha256(part).digest(), [*chunks, *frames, *frames]),
        pages=scale * _seconds(pages.leaves, chunks),
        compile=_compiling(each, files, wheel),
    )


def _members(wheel: Path) -> tuple[float, float]:
    """Seconds to inflate all members, and to hash what comes out; from memory, in blocks."""
    inflating = hashing = 0.0
    archive = Archive(wheel, source=wheel.name)
    for member in archive.members.values():
        local = archive.pread(_LOCAL_SIZE, member.offset)
        names = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
        rest = memoryview(archive.pread(member.stored_size, member.offset + _LOCAL_SIZE + names))
        decoder = archive.decoder() if member.is_deflated else None
        sha256 = hashlib.sha256()
        for at in range(0, len(rest), BLOCK_SIZE):
            started = time.process_time()
            data = decoder.decompress(rest[at : at + BLOCK_SIZE]) if decoder else rest[at : at + BLOCK_SIZE]
            inflated = time.process_time()
            sha256.update(data)
            inflating, hashing = inflating + inflated - started, hashing + time.process_time() - inflated
    return inflating, hashing


def _frames(store: LayoutTarget, layer: Layer) -> list[bytes]:
    """Frames of a layer, evenly spread over it, that hold _SAMPLE bytes or a chunk more."""
    start, end = index_range(layer.blob, source=layer.id) or (0, 0)
    index = open_index(layer.blob, store.fetch_range(layer.blob, start, end - start), source=layer.id)
    chosen = list(index)[:: max(1, -(-layer.tar_size // _SAMPLE))]
    return [store.fetch_range(layer.blob, chunk.blob_offset, chunk.blob_size) for chunk in chosen]


def _compiling(each: WheelPlan, files: LocalFiles, wheel: Path) -> float:
    """CPU seconds of the image's interpreter for all modules, one batch after the other."""
    archive = Archive(wheel, source=wheel.name)
    modules = sorted(name for name in archive.members if name.endswith(".py"))
    compiler = replace(each.compilation.compiler(files, artefact_cache()), jobs=1)
    before = os.times()
    for _ in compiler.compile((f"/{PREFIX}/{name}", archive.read(archive.members[name])) for name in modules):
        pass
    close_idle()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _seconds(do: Callable[[bytes], object], parts: Sequence[bytes]) -> float:
    started = time.process_time()
    for part in parts:
        do(part)
    return time.process_time() - started


if __name__ == "__main__":
    _build(*sys.argv[1:])
