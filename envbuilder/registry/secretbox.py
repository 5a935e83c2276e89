"""Opening a NaCl secretbox (XSalsa20, Poly1305): how cosign encrypts its private keys.

Source: "Cryptography in NaCl" (Bernstein, 2009) and "Extending the Salsa20 nonce" (2011). For a key of some 200
bytes only; ``cryptography`` has Poly1305 but not Salsa20, and one short key is no reason for another library.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.poly1305 import Poly1305

KEY_SIZE, NONCE_SIZE, _MAC_SIZE = 32, 24, 16
_SIGMA = struct.unpack("<4I", b"expand 32-byte k")
_MASK = 0xFFFFFFFF
#: Words of a column round and a row round: (target, addend, addend, rotation), Salsa20 specification, 3 to 6.
_QUARTERS = ((0, 4, 8, 12), (5, 9, 13, 1), (10, 14, 2, 6), (15, 3, 7, 11))
_ROWS = ((0, 1, 2, 3), (5, 6, 7, 4), (10, 11, 8, 9), (15, 12, 13, 14))


def open_box(box: bytes, nonce: bytes, key: bytes) -> bytes | None:
    """What ``box`` holds; None when the key is wrong or the box was changed."""
    if len(key) != KEY_SIZE or len(nonce) != NONCE_SIZE or len(box) < _MAC_SIZE:
        return None
    subkey = _hsalsa(key, nonce[:16])
    sealed = box[_MAC_SIZE:]
    stream = b"".join(_block(subkey, nonce[16:], number) for number in range((len(sealed) + 32 + 63) // 64))
    try:
        Poly1305.verify_tag(stream[:32], sealed, box[:_MAC_SIZE])
    except InvalidSignature:
        return None
    return bytes(a ^ b for a, b in zip(sealed, stream[32:], strict=False))


def _block(key: bytes, nonce: bytes, number: int) -> bytes:
    state = _state(key, nonce + struct.pack("<Q", number))
    mixed = _rounds(state)
    return struct.pack("<16I", *((a + b) & _MASK for a, b in zip(state, mixed, strict=True)))


def _hsalsa(key: bytes, nonce: bytes) -> bytes:
    mixed = _rounds(_state(key, nonce))
    return struct.pack("<8I", *(mixed[index] for index in (0, 5, 10, 15, 6, 7, 8, 9)))


def _state(key: bytes, middle: bytes) -> list[int]:
    k, n = struct.unpack("<8I", key), struct.unpack("<4I", middle)
    return [_SIGMA[0], *k[:4], _SIGMA[1], *n, _SIGMA[2], *k[4:], _SIGMA[3]]


def _rounds(state: list[int]) -> list[int]:
    x = list(state)
    for _ in range(10):
        for group in (_QUARTERS, _ROWS):
            for a, b, c, d in group:
                x[b] ^= _rotated(x[a] + x[d], 7)
                x[c] ^= _rotated(x[b] + x[a], 9)
                x[d] ^= _rotated(x[c] + x[b], 13)
                x[a] ^= _rotated(x[d] + x[c], 18)
    return x


def _rotated(word: int, bits: int) -> int:
    word &= _MASK
    return (word << bits | word >> (32 - bits)) & _MASK
