"""A start-up trace: which pages of an image a command reads at its start, and in which order. Pure.

A trace is a hint and never trusted: whatever it says, bytes are checked against the image's own digests. It is of
layers, so that it serves every image that has some of them. Format: docs/formats/trace.md.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import zstandard

from envbuilder.digest import Digest, InvalidDigest, InvalidJson, canonical_json, parse_json_object
from envbuilder.errors import IntegrityError
from envbuilder.layer.pages import GROUP_PAGES, PAGE_SIZE

#: What is written; of the first format the list of pages is read, not its bundle, which was of another kind.
_FORMAT, _WITH_OTHER_BUNDLES = 2, 1
#: Bytes of a trace, unpacked and as stored; ``ai`` has a tenth of that.
_MAX_SIZE, MAX_STORED = 32 << 20, 8 << 20
_LEVEL = 9
_COUNT = itemgetter(2)
#: Pages that one device may have: 16 TiB, what EROFS can address.
_MAX_PAGE = 1 << 32
#: Bytes that a frame of a hot bundle may have as stored: its pages and what proves them, incompressible.
MAX_FRAME = 8 << 20
#: Pages of one: a frame is unpacked before it is proved.
_MAX_FRAME_PAGES = MAX_FRAME // PAGE_SIZE


class InvalidTrace(IntegrityError):
    """A start-up trace is malformed or of other layers; the image starts without it."""


class Pages(NamedTuple):
    """``count`` neighbouring pages of device number ``device``, from page ``first`` on. A start makes thousands."""

    device: int
    first: int
    count: int  # type: ignore[assignment]  # not the method of tuples


#: ``Pages`` of three numbers, as they come: in a third of the time that its own constructor takes.
to_pages: Callable[[Iterable[int]], Pages] = partial(tuple.__new__, Pages)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a hot bundle: bytes as stored, how many pages of the trace it holds, sha256 as stored."""

    size: int
    pages: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What starts of an image read.

    image: digest of the plain manifest that was started. devices: digests of its layers, in order.
    ranges: in reading order, without overlaps. read_ahead: bytes that EROFS read ahead when it was recorded.
    frames: of the hot bundle; empty when there is none. proofs: bytes of the bundle before its first frame.
    sizes: bytes of each device's tar, 0 where none of it is in the bundle; empty when they were not noted.

    Of another image's layers (``on``): strangers: how many of the devices, the last, that image lacks.
    recorded_as: the number that each device had in the bundle, -1 for none; empty: the same.
    """

    image: Digest
    devices: tuple[Digest, ...]
    commands: tuple[str, ...]
    runs: int
    read_ahead: int
    ranges: tuple[Pages, ...]
    frames: tuple[Frame, ...] = ()
    proofs: int = 0
    sizes: tuple[int, ...] = ()
    strangers: int = 0
    recorded_as: tuple[int, ...] = ()

    @property
    def pages(self) -> int:
        """Pages in all."""
        return sum(map(_COUNT, self.ranges))

    @property
    def own(self) -> tuple[Pages, ...]:
        """The ranges of devices that are no strangers."""
        known = len(self.devices) - self.strangers
        return tuple(pages for pages in self.ranges if pages.device < known) if self.strangers else self.ranges

    def on(self, layers: Sequence[Digest]) -> Trace:
        """This trace, as recorded, for an image of ``layers``: they are its devices, in their order.

        What is of layers that the image lacks is left out. Where that stands in the bundle its devices follow as
        strangers, so that what comes behind it is found.

        Raises:
            InvalidTrace: it is of none of ``layers``.
        """
        if self.devices == tuple(layers):
            return self
        free: dict[Digest, list[int]] = defaultdict(list)
        for number in reversed(range(len(layers))):
            free[layers[number]].append(number)
        matches = [free[digest].pop() if free.get(digest) else -1 for digest in self.devices]
        touched = {pages.device for pages in self.ranges}
        strange = [old for old in sorted(touched) if matches[old] < 0]
        if len(strange) == len(touched):
            raise InvalidTrace(f"trace of {self.image}: it is of other layers than the image's")
        bundled = bool(self.frames) and all(self.sizes and self.sizes[old] for old in strange)
        if not bundled:
            strange = []
        for place, old in enumerate(strange, len(layers)):
            matches[old] = place
        recorded_as = [-1] * (len(layers) + len(strange))
        for old, new in enumerate(matches):
            if new >= 0:
                recorded_as[new] = old
        return replace(
            self,
            devices=(*layers, *(self.devices[old] for old in strange)),
            ranges=tuple(
                Pages(matches[device], first, count) for device, first, count in self.ranges if matches[device] >= 0
            ),
            frames=self.frames if bundled else (),
            proofs=self.proofs if bundled else 0,
            sizes=tuple(self.sizes[old] if self.sizes and old >= 0 else 0 for old in recorded_as),
            strangers=len(strange),
            recorded_as=tuple(recorded_as),
        )

    def provable(self, roots: Sequence[Digest | None]) -> Trace:
        """This trace without what no bundle can prove: of devices that have no root over their pages.

        The same where none has one.
        """
        ranges = tuple(pages for pages in self.ranges if roots[pages.device])
        return replace(self, ranges=ranges) if ranges else self

    def covers_most_of(self, sizes: Sequence[int]) -> bool:
        """Whether it has half of the bytes of devices of ``sizes``: then pulling everything is as quick."""
        own: int = sum(map(_COUNT, self.own))
        return own * PAGE_SIZE * 2 > sum(sizes)

    def dump(self) -> bytes:
        """The trace as it is stored."""
        value = {
            "format": _FORMAT,
            "image": str(self.image),
            "devices": [str(device) for device in self.devices],
            "commands": list(self.commands),
            "runs": self.runs,
            "readAhead": self.read_ahead,
            "ranges": [[pages.device, pages.first, pages.count] for pages in self.ranges],
            "frames": [[frame.size, frame.pages, frame.sha256] for frame in self.frames],
            "proofs": self.proofs,
        }
        if self.sizes:
            value["sizes"] = list(self.sizes)
        return zstandard.ZstdCompressor(level=_LEVEL).compress(canonical_json(value))


def parse_trace(data: bytes, *, source: str) -> Trace:
    """The trace in ``data``.

    Raises:
        InvalidTrace: not one, or one that contradicts itself.
    """
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if len(data) > MAX_STORED or not 0 < size <= _MAX_SIZE:
            raise InvalidTrace(f"{source}: trace: want at most {_MAX_SIZE} bytes, got {size}")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        return _trace(parse_json_object(plain, source=source), source)
    except (
        zstandard.ZstdError,
        InvalidJson,
        InvalidDigest,
        KeyError,
        TypeError,
        ValueError,
        json.JSONDecodeError,
    ) as error:
        raise InvalidTrace(f"{source}: trace: {error}") from error


def _trace(value: Mapping[str, Any], source: str) -> Trace:
    if value["format"] not in (_WITH_OTHER_BUNDLES, _FORMAT):
        raise InvalidTrace(f"{source}: trace: want format {_FORMAT}, got {value['format']!r}")
    devices = tuple(Digest.parse(text) for text in value["devices"])
    most = len(devices) - 1
    trace = Trace(
        image=Digest.parse(value["image"]),
        devices=devices,
        commands=tuple(str(text) for text in value["commands"]),
        runs=_number(value["runs"], 1 << 20),
        read_ahead=_number(value["readAhead"], 1 << 20),
        ranges=_ranges(value["ranges"], most),
        frames=tuple(
            Frame(_number(size, MAX_FRAME), _number(pages, _MAX_FRAME_PAGES), Digest("sha256:" + sha256).hex)
            for size, pages, sha256 in (value["frames"] if value["format"] == _FORMAT else ())
        ),
        proofs=_number(value["proofs"], 1 << 30),
        sizes=tuple(_number(size, _MAX_PAGE * PAGE_SIZE) for size in value.get("sizes", ())),
    )
    if trace.sizes and len(trace.sizes) != len(devices):
        raise InvalidTrace(f"{source}: trace: want the sizes of {len(devices)} devices, got {len(trace.sizes)}")
    if trace.frames and sum(frame.pages for frame in trace.frames) != trace.pages:
        raise InvalidTrace(f"{source}: trace: its frames hold other pages than its ranges name")
    if not trace.ranges or 0 in map(_COUNT, trace.ranges):
        raise InvalidTrace(f"{source}: trace: a range of no pages")
    return trace


def _ranges(value: Sequence[Any], last_device: int) -> tuple[Pages, ...]:
    """The thousands of ranges of a trace, checked column by column: a start waits for it."""
    if set(map(type, value)) - {list} or set(map(len, value)) - {3}:
        raise ValueError("want ranges of three numbers each")
    columns = tuple(zip(*value, strict=True)) or ((), (), ())
    for column, most in zip(columns, (last_device, _MAX_PAGE, _MAX_PAGE), strict=True):
        if set(map(type, column)) - {int} or min(column, default=0) < 0 or max(column, default=0) > most:
            raise ValueError(f"want numbers up to {most} in ranges")
    return tuple(map(to_pages, value))


def _number(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:  # a bool is an int, too
        raise ValueError(f"want a number up to {most}, got {str(value)[:40]!r}")
    return value


def merge(runs: Iterable[Iterable[Pages]]) -> tuple[Pages, ...]:
    """All pages of all ``runs``, each once, in the order in which they were first read.

    What one run reads and another does not is kept: it costs its bytes once, a miss costs a round trip.
    """
    seen: dict[int, set[int]] = {}
    merged: list[Pages] = []
    for run in runs:
        for pages in run:
            had = seen.setdefault(pages.device, set())
            for page in range(pages.first, pages.first + pages.count):
                if page in had:
                    continue
                had.add(page)
                last = merged[-1] if merged else None
                if last and last.device == pages.device and last.first + last.count == page:
                    merged[-1] = Pages(last.device, last.first, last.count + 1)
                else:
                    merged.append(Pages(pages.device, page, 1))
    return tuple(merged)


def of_reads(reads: Iterable[tuple[int, int, int]]) -> Iterator[Pages]:
    """The pages of ``reads``: device, offset and size in bytes."""
    for device, offset, size in reads:
        first = offset // PAGE_SIZE
        yield Pages(device, first, (offset + size - 1) // PAGE_SIZE + 1 - first)


def groups_of(ranges: Sequence[Pages]) -> list[tuple[int, int]]:
    """The groups of pages that ``ranges`` touch, (device, number), in order."""
    found: dict[tuple[int, int], None] = {}
    for pages in ranges:
        last = (pages.first + pages.count - 1) // GROUP_PAGES
        found.update(dict.fromkeys((pages.device, group) for group in range(pages.first // GROUP_PAGES, last + 1)))
    return list(found)
