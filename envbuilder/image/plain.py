"""The tar inside a layer, however it is compressed."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import BLOCK_SIZE, Readable

#: What reading a damaged layer raises besides errors of ours.
DAMAGES = (zstandard.ZstdError, zlib.error, gzip.BadGzipFile, EOFError)
#: First bytes: RFC 1952 2.3.1; RFC 8878 3.1.1 (a frame) and 3.1.2 (a frame to pass over, of 16 kinds).
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE_FIRST, _SKIPPABLE_REST = bytes(range(0x50, 0x60)), b"\x2a\x4d\x18"
_MAGIC_SIZE = 4


@contextmanager
def plain_tar(stored: BinaryIO) -> Iterator[Readable]:
    """The tar of a layer. How it is compressed is seen in its bytes, as container engines do.

    Docker's archives have no media types: crane calls each of their layers gzip, buildpacks push plain tars under
    that name. The diff_id decides in the end whether these are the bytes that the image means.

    Raises:
        one of DAMAGES: from ``read``.
    """
    first = b""
    while len(first) < _MAGIC_SIZE and (more := stored.read(_MAGIC_SIZE - len(first))):
        first += more
    whole = _Rewound(first, stored)
    if first.startswith(_GZIP_MAGIC):
        with gzip.GzipFile(fileobj=cast("BinaryIO", whole)) as unzipped:
            yield cast("Readable", io.BufferedReader(unzipped, BLOCK_SIZE))
    elif first == _ZSTD_MAGIC or (first[:1] in _SKIPPABLE_FIRST and first[1:] == _SKIPPABLE_REST):
        with zstandard.ZstdDecompressor().stream_reader(cast("BinaryIO", whole), read_across_frames=True) as stream:
            yield stream
    else:
        yield whole


class _Rewound:
    """``first``, which was read already, then the rest of ``inner``."""

    def __init__(self, first: bytes, inner: Readable) -> None:
        self._first, self._inner = first, inner

    def read(self, size: int = -1, /) -> bytes:
        if not self._first:
            return self._inner.read(size)
        if size < 0:
            data, self._first = self._first + self._inner.read(), b""
            return data
        data, self._first = self._first[:size], self._first[size:]
        return data
