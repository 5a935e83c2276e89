"""A hot bundle: exactly the pages of a trace, in its order, as one stream that proves itself. Pure.

    proofs:  the nodes of every device that the trace touches, by device
    frames:  zstd; each the leaves of the groups that it is the first to touch, then its pages

Each page is checked against a leaf, leaves against a node, nodes against the root that the image's manifest
names (layer/pages.py): who made the bundle need not be trusted. Format: docs/formats/trace.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.layer import pages as tree
from envbuilder.layer.pages import GROUP_PAGES, GROUP_SIZE, HASH_SIZE, PAGE_SIZE
from envbuilder.mount.startup.trace import Frame, Pages
from envbuilder.oci import media_types

#: Pages of a frame: 2 MiB, some 0.7 MB as stored; what came is handed on frame by frame, every 6 ms at 1 Gbit/s.
FRAME_PAGES = 512


class BadHotPage(IntegrityError):
    """A hot bundle holds other bytes than the image; nothing of it is used."""


class Part(NamedTuple):
    """Pages of one group, ``count`` from ``first`` on (of the device), that stand together in a frame."""

    device: int
    group: int
    first: int
    count: int  # type: ignore[assignment]  # not the method of tuples


@dataclass(frozen=True, slots=True)
class FramePlan:
    """What stands in one frame: the groups whose leaves come first, then the parts."""

    fresh: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]

    @property
    def pages(self) -> int:
        return sum(part.count for part in self.parts)


def page_root(blob: Descriptor) -> Digest | None:
    """The root over the pages of a layer, as its descriptor in the manifest names it."""
    text = blob.annotations.get(media_types.LAYER_PAGES)
    return Digest.parse(text) if text else None


def plan_frames(ranges: Sequence[Pages], frame_pages: Sequence[int] = ()) -> tuple[FramePlan, ...]:
    """``ranges`` cut into frames, of ``frame_pages`` pages each or of ``FRAME_PAGES``."""
    plans: list[FramePlan] = []
    known: set[tuple[int, int]] = set()
    fresh: list[tuple[int, int]] = []
    parts: list[Part] = []
    room = full = frame_pages[0] if frame_pages else FRAME_PAGES
    for pages in ranges:
        at, end = pages.first, pages.first + pages.count
        while at < end:
            group = at // GROUP_PAGES
            count = min(end - at, (group + 1) * GROUP_PAGES - at, room)
            if (key := (pages.device, group)) not in known:
                known.add(key)
                fresh.append(key)
            parts.append(Part(pages.device, group, at, count))
            at, room = at + count, room - count
            if room == 0:
                plans.append(FramePlan(tuple(fresh), tuple(parts)))
                fresh, parts = [], []
                room = full = frame_pages[len(plans)] if len(plans) < len(frame_pages) else full
    if parts:
        plans.append(FramePlan(tuple(fresh), tuple(parts)))
    return tuple(plans)


@dataclass(frozen=True, slots=True)
class HotDevice:
    """A device as far as proofs go: bytes of its tar, and the root over its pages."""

    size: int
    root: Digest

    @property
    def groups(self) -> int:
        return -(-self.size // GROUP_SIZE)

    def leaves_size(self, group: int) -> int:
        """Bytes of the leaves of ``group``.

        Raises:
            BadHotPage: there is no such group.
        """
        size = min(GROUP_SIZE, self.size - group * GROUP_SIZE)
        if group < 0 or size <= 0:
            raise BadHotPage(f"hot bundle: a page of group {group} of {self.groups}")
        return -(-size // PAGE_SIZE) * HASH_SIZE

    def part_size(self, part: Part) -> int:
        """Bytes of the pages of ``part``; the last page of a tar may be short."""
        return min(part.count * PAGE_SIZE, self.size - part.first * PAGE_SIZE)


class Prover:
    """Opens the frames of a bundle, in order, and gives nothing that is not proved."""

    def __init__(self, devices: dict[int, HotDevice], proofs: bytes) -> None:
        """devices: those that the trace touches.

        Raises:
            BadHotPage: the nodes are not those of the devices.
        """
        self._devices = devices
        self._nodes: dict[int, bytes] = {}
        self._leaves: dict[tuple[int, int], bytes] = {}
        at = 0
        for number, device in sorted(devices.items()):
            nodes = proofs[at : at + device.groups * HASH_SIZE]
            at += device.groups * HASH_SIZE
            if tree.root(nodes) != device.root:
                raise BadHotPage(f"hot bundle: the proofs of device {number} are not of the image")
            self._nodes[number] = nodes
        if at != len(proofs):
            raise BadHotPage(f"hot bundle: want {at} bytes of proofs, got {len(proofs)}")

    def open(self, stored: bytes, frame: Frame, plan: FramePlan) -> Iterator[tuple[Part, memoryview]]:
        """The pages of a frame, every one proved.

        Raises:
            BadHotPage: other bytes than the image's.
        """
        if len(stored) != frame.size or hashlib.sha256(stored).hexdigest() != frame.sha256:
            raise BadHotPage("hot bundle: a frame is not the one that the trace names")
        sizes = [self._devices[device].leaves_size(group) for device, group in plan.fresh]
        sizes += [self._devices[part.device].part_size(part) for part in plan.parts]
        want = sum(sizes)
        try:
            if zstandard.get_frame_parameters(stored).content_size != want or min(sizes) <= 0:
                raise BadHotPage(f"hot bundle: a frame does not hold {want} bytes")
            data = zstandard.ZstdDecompressor().decompress(stored, max_output_size=want, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadHotPage(f"hot bundle: {error}") from error
        view, at = memoryview(data), 0
        for key, size in zip(plan.fresh, sizes, strict=False):
            leaves = bytes(view[at : at + size])
            number, group = key
            if tree.node(leaves) != self._nodes[number][group * HASH_SIZE : (group + 1) * HASH_SIZE]:
                raise BadHotPage(f"hot bundle: group {group} of device {number}: leaves are not of the image")
            self._leaves[key] = leaves
            at += size
        for part, size in zip(plan.parts, sizes[len(plan.fresh) :], strict=True):
            found = view[at : at + size]
            start = part.first % GROUP_PAGES * HASH_SIZE
            leaves = self._leaves[part.device, part.group][start : start + part.count * HASH_SIZE]
            if tree.leaves(found) != leaves:
                raise BadHotPage(f"hot bundle: page {part.first} of device {part.device} is not of the image")
            at += size
            yield part, found


def close_frame(compressor: zstandard.ZstdCompressor, leaves: Sequence[bytes], pages: Sequence[bytes]) -> bytes:
    """A frame as stored: the counterpart of ``Prover.open``."""
    return compressor.compress(b"".join([*leaves, *pages]))
