"""Unpack the beginning of a member of a gzip or zstd blob, or deflate data from the middle of one. Pure.

A checkpoint says where a deflate block begins, to the bit, and which 32 KiB go before it. Python's zlib begins at bytes
only: deflate blocks that hold nothing, of the right number of bits, bring it to the bit (RFC 1951, 3.2).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import zstandard

#: What unpacking damaged data raises.
DAMAGES = (zlib.error, zstandard.ZstdError, EOFError)
#: Bytes that are unpacked at a time.
_STEP = 256 << 10
#: Bytes of the CRC and size behind deflate data, RFC 1952 2.3.1; wbits of raw deflate, and of gzip with its header.
_TRAILER, _RAW, _GZIP = 8, -15, 31
_MEMBER = struct.Struct("<BB")


@dataclass(frozen=True, slots=True)
class Member:
    """Where deflate data begin: ``bits`` bits of ``first``, its highest, belong to them; ``window`` goes before."""

    bits: int
    first: int
    window: bytes

    def dump(self) -> bytes:
        """As ``load`` takes it."""
        packed = zstandard.ZstdCompressor(level=3).compress(self.window) if self.window else b""
        return _MEMBER.pack(self.bits, self.first) + packed

    @classmethod
    def load(cls, data: bytes) -> Member:
        """What ``dump`` gave.

        Raises:
            zstandard.ZstdError, EOFError: it is something else.
        """
        if len(data) < _MEMBER.size or data[0] > 7:
            raise EOFError("not a checkpoint")
        packed = data[_MEMBER.size :]
        window = zstandard.ZstdDecompressor().decompress(packed, max_output_size=1 << 15) if packed else b""
        return cls(data[0], data[1], window)


class Unpacking:
    """Takes an iterator of unpacked data in pieces; ``done``: bytes taken so far."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._left, self.done = blocks, memoryview(b""), 0

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes.

        Raises:
            EOFError: there are fewer. Others of ``DAMAGES``.
        """
        parts, missing = [], size
        while missing:
            if not self._left:
                block = next(self._blocks, b"")
                if not block:
                    raise EOFError(f"ends {missing} bytes early")
                self._left = memoryview(block)
            part = self._left[:missing]
            self._left = self._left[len(part) :]
            missing -= len(part)
            parts.append(part)
        self.done += size
        return b"".join(parts)

    def skip(self, size: int) -> None:
        """Pass over ``size`` bytes."""
        while size > 0:
            size -= len(self.take(min(size, _STEP)))


def unzstd(stored: memoryview) -> Iterator[bytes]:
    """The data of the zstd frames in ``stored``."""
    with zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True) as reader:
        while block := reader.read(_STEP):
            yield block


def unzip(stored: memoryview) -> Iterator[bytes]:
    """The data of the gzip members in ``stored``."""
    return _inflate(zlib.decompressobj(_GZIP), b"", stored, raw=False)


def inflate(stored: memoryview, start: Member) -> Iterator[bytes]:
    """The deflate data that begin with ``start`` and go on in ``stored``, and the gzip members behind them."""
    fill = -start.bits % 8
    prefix = _nothing(fill) if start.bits else b""
    if start.bits:
        prefix = prefix[:-1] + bytes([prefix[-1] | start.first >> fill << fill & 0xFF]) if fill else prefix
    state = zlib.decompressobj(_RAW, zdict=start.window) if start.window else zlib.decompressobj(_RAW)
    return _inflate(state, prefix, stored, raw=True)


def _inflate(state: zlib._Decompress, prefix: bytes, stored: memoryview, *, raw: bool) -> Iterator[bytes]:
    at = 0
    waiting: bytes = prefix
    while True:
        if not waiting:
            waiting = bytes(stored[at : at + _STEP])
            at += len(waiting)
            if not waiting:
                return
        block = state.decompress(waiting, _STEP)
        if block:
            yield block
        waiting = state.unconsumed_tail
        if state.eof:
            at -= len(state.unused_data)
            # Raw data do not know their trailer.
            at += _TRAILER if raw else 0
            waiting, raw = b"", False
            if at >= len(stored) or stored[at] == 0:
                return  # its end, or padding
            state = zlib.decompressobj(_GZIP)


@lru_cache(maxsize=8)
def _nothing(count: int) -> bytes:
    """Deflate blocks without data whose bits end at bit ``count`` of the last byte (0: at its end)."""
    bits: list[int] = []
    if count % 2:
        bits += _empty_dynamic_block()
    while len(bits) % 8 != count:
        bits += (0, 1, 0, *([0] * 7))  # fixed codes; the end of the block is seven zeros
    bits += [0] * (-len(bits) % 8)
    return bytes(
        sum(bit << place for place, bit in enumerate(bits[start : start + 8])) for start in range(0, len(bits), 8)
    )


def _empty_dynamic_block() -> list[int]:
    """A block of an odd number of bits: codes of its own, of which one, of one bit, ends it."""
    bits = [0, 0, 1, *_number(0, 5), *_number(0, 5), *_number(15, 4)]  # 257 literals, 1 distance, 19 code lengths
    for symbol in (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15):
        bits += _number(int(symbol in (1, 18)), 3)
    # Code 0 is symbol 1, code 1 is symbol 18: zeros for 138 and for 118 literals, one bit for the end, and a distance.
    return [*bits, 1, *_number(138 - 11, 7), 1, *_number(118 - 11, 7), 0, 0, 0]


def _number(value: int, size: int) -> list[int]:
    return [value >> place & 1 for place in range(size)]
