"""A hot bundle: exactly the pages of a trace, in about its order, as one stream that proves itself. Pure.

    proofs:  the nodes of every device that the trace touches, by device
    frames:  zstd, each with the one before as its dictionary; of the groups that it is the first to touch the leaves
             that do not follow from its own pages, then its pages

Each page is checked against a leaf, leaves against a node, nodes against the root that the image's manifest
names (layer/pages.py): who made the bundle need not be trusted. Format: docs/formats/trace.md.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest
from typing import Any, NamedTuple, TypeAlias

import zstandard

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.layer import pages as tree
from envbuilder.layer.pages import GROUP_PAGES, GROUP_SIZE, HASH_SIZE, PAGE_SIZE
from envbuilder.mount.startup.trace import Frame, Pages, Trace
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


#: The pages of a frame, proved, in its order.
Opened: TypeAlias = Sequence[tuple[Part, memoryview]]


@dataclass(frozen=True, slots=True)
class FramePlan:
    """What stands in one frame: the groups, (device, number), whose leaves come first, then the parts.

    known: devices from this number on are strangers to the image (``Trace.on``).
    """

    fresh: tuple[tuple[int, int], ...]
    parts: tuple[Part, ...]
    known: int = sys.maxsize

    @property
    def given(self) -> Sequence[Part]:
        """The parts that a ``Prover`` gives: those of the image."""
        return self.parts if self.known == sys.maxsize else [part for part in self.parts if part.device < self.known]

    def own(self) -> dict[tuple[int, int], list[Part]]:
        """The parts of each group, by place: nobody need send leaves of pages that stand in the same frame."""
        found: dict[tuple[int, int], list[Part]] = {}
        for part in self.parts:
            found.setdefault((part.device, part.group), []).append(part)
        return found

    @property
    def pages(self) -> int:
        return sum(part.count for part in self.parts)


def page_root(blob: Descriptor) -> Digest | None:
    """The root over the pages of a layer, as its descriptor in the manifest names it."""
    text = blob.annotations.get(media_types.LAYER_PAGES)
    return Digest.parse(text) if text else None


def plan_frames(ranges: Sequence[Pages], frame_pages: Sequence[int] = ()) -> tuple[FramePlan, ...]:
    """``ranges`` cut into frames, of ``frame_pages`` pages each or of ``FRAME_PAGES``.

    All pages of a frame come at once, so that they stand by place in it: that makes it smaller.
    """
    return tuple(_frames(ranges, frame_pages))


class FramePlans(Sequence[FramePlan]):
    """The plans of all frames of ``trace``, each made when it is first asked for: a start waits for the first only."""

    def __init__(self, trace: Trace) -> None:
        self._made: list[FramePlan] = []
        self._count, self._more = len(trace.frames), _planned(trace)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        while len(self._made) <= number:
            self._made.append(next(self._more, FramePlan((), ())))
        return self._made[number]


def _planned(trace: Trace) -> Iterator[FramePlan]:
    """The plans of the frames of ``trace``, as its bundle was made."""
    plans, numbers = _frames(trace.ranges, [frame.pages for frame in trace.frames]), trace.recorded_as
    if not numbers:
        return plans

    def place(part: Part) -> tuple[int, ...]:
        return (numbers[part.device], *part[1:])

    known = len(trace.devices) - trace.strangers
    return (FramePlan(plan.fresh, tuple(sorted(plan.parts, key=place)), known) for plan in plans)


def proof_order(trace: Trace) -> list[int]:
    """The numbers of the devices that ``trace`` touches, strangers too, as their proofs follow each other."""
    numbers = trace.recorded_as
    return sorted({pages.device for pages in trace.ranges}, key=numbers.__getitem__ if numbers else None)


def _frames(ranges: Sequence[Pages], frame_pages: Sequence[int]) -> Iterator[FramePlan]:
    made = 0
    known: set[tuple[int, int]] = set()
    fresh: list[tuple[int, int]] = []
    parts: list[Part] = []
    room = full = frame_pages[0] if frame_pages else FRAME_PAGES
    for device, first, length in ranges:
        at, end = first, first + length
        while at < end:
            group = at // GROUP_PAGES
            count = min(end - at, (group + 1) * GROUP_PAGES - at, room)
            if (key := (device, group)) not in known:
                known.add(key)
                fresh.append(key)
            parts.append(Part(device, group, at, count))
            at, room = at + count, room - count
            if room == 0:
                yield FramePlan(tuple(fresh), tuple(sorted(parts)))
                fresh, parts, made = [], [], made + 1
                room = full = frame_pages[made] if made < len(frame_pages) else full
    if parts:
        yield FramePlan(tuple(fresh), tuple(sorted(parts)))


@dataclass(frozen=True, slots=True)
class HotDevice:
    """A device as far as proofs go: bytes of its tar, and the root over its pages; None: a stranger's."""

    size: int
    root: Digest | None

    @property
    def groups(self) -> int:
        return -(-self.size // GROUP_SIZE)

    def leaves(self, group: int) -> int:
        """How many leaves ``group`` has.

        Raises:
            BadHotPage: there is no such group.
        """
        size = min(GROUP_SIZE, self.size - group * GROUP_SIZE)
        if group < 0 or size <= 0:
            raise BadHotPage(f"hot bundle: a page of group {group} of {self.groups}")
        return -(-size // PAGE_SIZE)

    def part_size(self, part: Part) -> int:
        """Bytes of the pages of ``part``; the last page of a tar may be short.

        Raises:
            BadHotPage: there are not so many.
        """
        if (part.first + part.count - 1) * PAGE_SIZE >= self.size:
            raise BadHotPage(f"hot bundle: page {part.first + part.count - 1} of {self.size} bytes")
        return min(part.count * PAGE_SIZE, self.size - part.first * PAGE_SIZE)


class Prover:
    """Opens the frames of a bundle, in order, and gives nothing that is not proved."""

    def __init__(self, devices: dict[int, HotDevice], proofs: bytes | bytearray) -> None:
        """devices: those that the trace touches, in ``proof_order``.

        Raises:
            BadHotPage: the nodes are not those of the devices.
        """
        self._devices = devices
        self._nodes: dict[int, bytes] = {}
        self._leaves: dict[tuple[int, int], bytes] = {}
        self._before = b""
        at = 0
        for number, device in devices.items():
            nodes = bytes(proofs[at : at + device.groups * HASH_SIZE])
            at += device.groups * HASH_SIZE
            if device.root is None:
                continue
            if tree.root(nodes) != device.root:
                raise BadHotPage(f"hot bundle: the proofs of device {number} are not of the image")
            self._nodes[number] = nodes
        if at != len(proofs):
            raise BadHotPage(f"hot bundle: want {at} bytes of proofs, got {len(proofs)}")

    def open(self, stored: bytes | bytearray, frame: Frame, plan: FramePlan) -> Opened:
        """The pages of a frame that are of the image, every one proved.

        Raises:
            BadHotPage: other bytes than the image's.
        """
        if len(stored) != frame.size or hashlib.sha256(stored).hexdigest() != frame.sha256:
            raise BadHotPage("hot bundle: a frame is not the one that the trace names")
        own = plan.own()
        sizes = [self._devices[part.device].part_size(part) for part in plan.parts]
        proofs = [
            (self._devices[key[0]].leaves(key[1]) - sum(part.count for part in own[key])) * HASH_SIZE
            for key in plan.fresh
        ]
        want = sum(sizes) + sum(proofs)
        try:
            if zstandard.get_frame_parameters(stored).content_size != want or min(proofs, default=0) < 0:
                raise BadHotPage(f"hot bundle: a frame does not hold {want} bytes")
            unpack = zstandard.ZstdDecompressor(dict_data=_dictionary(self._before))
            data = unpack.decompress(stored, max_output_size=want, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadHotPage(f"hot bundle: {error}") from error
        cut = [0, *accumulate([*proofs, *sizes])]
        pieces = [memoryview(data)[start:end] for start, end in pairwise(cut)]
        parts = zip(plan.parts, pieces[len(proofs) :], strict=True)
        found = [(part, pages) for part, pages in parts if part.device in self._nodes]
        leaves = [(part, tree.leaves(pages)) for part, pages in found]
        by_part = dict(leaves)
        for key, others in zip(plan.fresh, pieces, strict=False):
            if key[0] in self._nodes:
                self._leaves[key] = self._joined(key, others, {part: by_part[part] for part in own[key]})
        for part, theirs in leaves:  # all of them: a hostile trace may name a part twice
            start = part.first % GROUP_PAGES * HASH_SIZE
            if theirs != self._leaves[part.device, part.group][start : start + len(theirs)]:
                raise BadHotPage(f"hot bundle: page {part.first} of device {part.device} is not of the image")
        self._before = data
        return found

    def _joined(self, key: tuple[int, int], others: memoryview, own: Mapping[Part, bytes]) -> bytes:
        """The leaves of a group: those of pages that came with them, and the ``others``.

        Raises:
            BadHotPage: they are not of the image.
        """
        number, group = key
        joined, at = bytearray(), 0
        gaps = _gaps(list(own), self._devices[number].leaves(group))
        for (start, stop), theirs in zip_longest(gaps, own.values(), fillvalue=b""):
            size = (stop - start) * HASH_SIZE
            joined += others[at : at + size]
            joined += theirs
            at += size
        leaves = bytes(joined)
        if tree.node(leaves) != self._nodes[number][group * HASH_SIZE : (group + 1) * HASH_SIZE]:
            raise BadHotPage(f"hot bundle: group {group} of device {number} is not of the image")
        return leaves


def frame_data(plan: FramePlan, leaves: Mapping[tuple[int, int], bytes], pages: Iterable[bytes]) -> bytes:
    """What a frame holds. leaves: of each fresh group, all; pages: of each part."""
    own = plan.own()
    sent = [
        leaves[key][start * HASH_SIZE : stop * HASH_SIZE]
        for key in plan.fresh
        for start, stop in _gaps(own[key], len(leaves[key]) // HASH_SIZE)
    ]
    return b"".join([*sent, *pages])


def _gaps(parts: Sequence[Part], count: int) -> Iterator[tuple[int, int]]:
    """Of a group of ``count`` pages those before, between and behind ``parts``: first and end."""
    page = 0
    for part in parts:
        first = part.first % GROUP_PAGES
        yield page, first
        page = first + part.count
    yield page, count


def close_frame(before: bytes, data: bytes, *, level: int) -> bytes:
    """The frame of ``data`` as stored, behind one of ``before``, empty for the first: what ``Prover.open`` opens."""
    return zstandard.ZstdCompressor(
        level=level, write_checksum=False, write_content_size=True, dict_data=_dictionary(before)
    ).compress(data)


def _dictionary(before: bytes) -> zstandard.ZstdCompressionDict | None:
    """What stands in one frame often resembles what stood in the last."""
    return zstandard.ZstdCompressionDict(before, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if before else None
