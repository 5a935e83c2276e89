"""The tar inside a layer, however it is compressed; bounded, and proved to be the one that its image means."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, Readable
from envbuilder.layer.foreign_tar import BadLayer, Hashing, most_bytes
from envbuilder.oci import media_types

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


def check_media_type(layer: Descriptor, source: str) -> None:
    """Nothing, if ``layer`` is called a tar, compressed or not.

    Raises:
        BadLayer: it is called anything else.
    """
    if layer.media_type not in media_types.TAR_LAYERS:
        raise BadLayer(f"{source}: want a tar, gzip or zstd layer, got {layer.media_type[:100]!r}")


@contextmanager
def proved(plain: Readable, layer: Descriptor, diff_id: Digest, source: str) -> Iterator[Readable]:
    """``plain``, the tar of ``layer``: what the block leaves of it is read as well, and all of it must be ``diff_id``.

    Raises:
        BadLayer: it is not, it is damaged, or it is larger than a layer of this size may be.
    """
    hashing = Hashing(plain, most_bytes(layer.size), source)
    try:
        yield hashing
        while hashing.read(BLOCK_SIZE):
            pass
    except DAMAGES as error:
        raise BadLayer(f"{source}: {error}") from error
    if hashing.digest() != diff_id:
        raise BadLayer(f"{source}: want diff_id {diff_id}, got {hashing.digest()}")


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
