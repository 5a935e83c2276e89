"""CRC-64/GO-ISO, which tar-split keeps of each file, at 100 to 200 MB/s without a table or a library. Pure.

The polynomial is x^64 + x^4 + x^3 + x + 1. In arithmetic modulo 2 squaring goes through a sum term by term, so that
x^(64 s) is x^(4 s) + x^(3 s) + x^s + 1 = (1 + x^s) (1 + x^(3 s)) for every power of two s: a row of 64 s bits moves
past the next one by two shifts of one big integer. Bits stand as they are sent: the first is the lowest and has the
highest power, and a shift to the right multiplies.
"""

from __future__ import annotations

_ONES = (1 << 64) - 1
#: Bytes of a row, a power of two: larger ones leave the processor's cache, smaller ones are more steps.
_ROW = 8192
_BITS, _STEP = _ROW * 8, _ROW * 8 // 64
#: Powers that a row gets before they are brought down again.
_ROOM = 8 * _STEP
_MASK = (1 << _ROOM) - 1


def crc64(data: bytes | memoryview, before: int = 0) -> int:
    """The checksum of what ``before`` is the checksum of (0: nothing), followed by ``data``."""
    if not data:
        return before
    at = len(data) % _ROW
    if len(data) > _ROW and at < 8:
        at += _ROW  # the state goes into the first 64 bits
    at = at or len(data)
    value = int.from_bytes(data[:at], "little") ^ before ^ _ONES
    if at == len(data):
        return _remainder(value, at * 8 + 64) ^ _ONES
    value = _remainder(value, at * 8) << (_BITS - 64 + _ROOM)
    for start in range(at, len(data), _ROW):
        value = _times(value, _STEP)
        over = value & _MASK
        value ^= over ^ _times(over << _BITS, _STEP) ^ (int.from_bytes(data[start : start + _ROW], "little") << _ROOM)
    return _remainder(value >> _ROOM, _BITS + 64) ^ _ONES


def _times(value: int, step: int) -> int:
    """``value`` times x^(64 step)."""
    value ^= value >> step
    return value ^ (value >> 3 * step)


def _remainder(value: int, size: int) -> int:
    """``value``, of ``size`` bits, modulo the polynomial: 64 bits."""
    while size > 64:
        step = 1 << ((size - 1).bit_length() - 7)  # the largest power of two with 64 * step < size
        low = 64 * step
        high = size - low
        now = max(low, high + 4 * step)
        first, rest = value & ((1 << high) - 1), value >> high
        value, size = _times(first << (now - high), step) ^ (rest << (now - low)), now
    return value << (64 - size)
