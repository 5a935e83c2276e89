"""Make the hot bundle of a trace: read the layers that it touches, once, in parallel, and put its pages in its order.

Every chunk is verified as it is read. Memory is a few chunks a process; pages wait in a file until their turn comes.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from envbuilder.digest import Descriptor
from envbuilder.errors import IntegrityError
from envbuilder.image.inspect import fetch_index
from envbuilder.layer import pages as tree
from envbuilder.layer.frames import read_chunk
from envbuilder.layer.pages import GROUP_PAGES, GROUP_SIZE, PAGE_SIZE
from envbuilder.mount.startup.hot import FramePlan, close_frame, frame_data, page_root, plan_frames
from envbuilder.mount.startup.trace import Frame, Trace
from envbuilder.store.target import RangeTarget

#: zstd level: made once, sent at every start. docs/decisions/ has the numbers.
_LEVEL = 12


class NoPageTree(IntegrityError):
    """A layer does not name the root over its pages, or has other pages: it cannot have a hot bundle."""

    hint = "Build the image anew; until then starts fetch whole chunks in the order of the trace."


def is_of_use(trace: Trace, layers: Sequence[Descriptor], source: RangeTarget) -> bool:
    """Whether starts would read a bundle of ``trace``: what has most of the image is pulled whole, in its order.

    Raises:
        BadChunk, UnavailableError, ...: the source.
    """
    return not trace.covers_most_of([fetch_index(source, layer).size for layer in layers])


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be copied of one device: (group, first page of it, pages, place in the spool file)."""

    blob: Descriptor
    parts: tuple[tuple[int, int, int, int], ...]


class _Found(NamedTuple):
    """What proves the pages of one device: its nodes, the leaves of groups that are touched; its size."""

    nodes: bytes
    leaves: dict[int, bytes]
    size: int


def build_bundle(trace: Trace, layers: Sequence[Descriptor], source: RangeTarget, file: Path, *, jobs: int) -> Trace:
    """Write the bundle of ``trace`` to ``file``; the trace with its frames.

    Raises:
        NoPageTree: see there. BadChunk, UnavailableError, ...: the source.
    """
    plans = plan_frames(trace.ranges)
    wanted: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    place = 0
    for plan in plans:
        for part in plan.parts:
            wanted[part.device].append((part.group, part.first % GROUP_PAGES, part.count, place))
            place += part.count * PAGE_SIZE
    if any(page_root(layers[device]) is None for device in wanted):
        raise NoPageTree(f"{trace.image}: its layers name no root over their pages")
    spool = file.with_name(f".{file.name}.pages")
    try:
        with spool.open("wb") as made:
            made.truncate(place)
        work = [(_Wanted(layers[device], tuple(parts)), source, spool) for device, parts in sorted(wanted.items())]
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            found = dict(zip(sorted(wanted), pool.map(_copy_pages, *zip(*work, strict=True)), strict=True))
        frames, proofs = _write(plans, found, spool, file, jobs)
        sizes = tuple(found[number].size if number in found else 0 for number in range(len(layers)))
        return replace(trace, frames=frames, proofs=proofs, sizes=sizes)
    finally:
        spool.unlink(missing_ok=True)


def _copy_pages(wanted: _Wanted, source: RangeTarget, spool: Path) -> _Found:
    """Copy pages of one device to their places, and what proves them."""
    blob = wanted.blob
    name = f"layer {blob.digest}"
    index = fetch_index(source, blob)
    by_group: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for number, first, count, place in wanted.parts:
        by_group[number].append((first, count, place))
    nodes, leaves = bytearray(), {}
    opened = os.open(spool, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with source.fetch(blob) as stream:
            for chunk in index:
                if chunk.offset % GROUP_SIZE:
                    raise NoPageTree(f"{name}: its chunks do not all begin with a group of pages")
                plain = read_chunk(chunk, stream.read(chunk.blob_size), source=name)
                for at in range(0, chunk.size, GROUP_SIZE):
                    number, pages = (chunk.offset + at) // GROUP_SIZE, memoryview(plain)[at : at + GROUP_SIZE]
                    hashes = tree.leaves(pages)
                    nodes += tree.node(hashes)
                    if number in by_group:
                        leaves[number] = hashes
                    for first, count, place in by_group.get(number, ()):
                        os.pwrite(opened, pages[first * PAGE_SIZE : (first + count) * PAGE_SIZE], place)
    finally:
        os.close(opened)
    if tree.root(nodes) != page_root(blob):
        raise NoPageTree(f"{name}: want the root {page_root(blob)} over its pages, got {tree.root(nodes)}")
    return _Found(bytes(nodes), leaves, index.size)


def _write(
    plans: Sequence[FramePlan], found: Mapping[int, _Found], spool: Path, file: Path, jobs: int
) -> tuple[tuple[Frame, ...], int]:
    """Put what was copied into the bundle: its frames, and where the first begins."""
    frames: list[Frame] = []
    before = b""
    with spool.open("rb") as pages, file.open("wb") as out, ThreadPoolExecutor(jobs) as pool:
        for number in sorted(found):
            out.write(found[number].nodes)
        proofs = out.tell()
        for start in range(0, len(plans), jobs):
            some = plans[start : start + jobs]
            data = [before, *(_data(plan, found, pages) for plan in some)]
            for plan, stored in zip(some, pool.map(partial(close_frame, level=_LEVEL), data, data[1:]), strict=True):
                out.write(stored)
                frames.append(Frame(len(stored), plan.pages, hashlib.sha256(stored).hexdigest()))
            before = data[-1]
    return tuple(frames), proofs


def _data(plan: FramePlan, found: Mapping[int, _Found], pages: BinaryIO) -> bytes:
    """What a frame holds; its pages come next in ``pages``."""
    leaves = {(device, group): found[device].leaves[group] for device, group in plan.fresh}
    # The last page of a tar may be short; our own never is.
    sizes = [(part.count * PAGE_SIZE, found[part.device].size - part.first * PAGE_SIZE) for part in plan.parts]
    return frame_data(plan, leaves, [pages.read(size)[:left] for size, left in sizes])
