"""An image unpacked into a directory: the last resort where EROFS or FUSE are missing, and for foreign images.

What lies in its layers is laid into the tree by untar.py.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, Readable
from envbuilder.errors import HostError
from envbuilder.image.inspect import OpenImage
from envbuilder.mount.untar import BadLayer, unpack_tar
from envbuilder.oci import media_types
from envbuilder.store.target import Target

_TARS = frozenset(
    {
        media_types.OCI_LAYER_TAR,
        media_types.OCI_LAYER_TAR_GZIP,
        media_types.OCI_LAYER_TAR_ZSTD,
        media_types.DOCKER_LAYER_TAR,
        media_types.DOCKER_LAYER_TAR_GZIP,
        media_types.DOCKER_LAYER_TAR_ZSTD,
    }
)
#: First bytes: RFC 1952 2.3.1; RFC 8878 3.1.1 (a frame) and 3.1.2 (a frame to pass over, of 16 kinds).
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE_FIRST, _SKIPPABLE_REST = bytes(range(0x50, 0x60)), b"\x2a\x4d\x18"
_MAGIC_SIZE = 4


class NotUnpacked(HostError):
    """The disk refused what a layer holds."""

    hint = "Free disk space, or choose a cache folder on an ordinary Linux file system."


def unpacked(image: OpenImage, source: Target, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """The root file system of ``image`` below ``folder``, unpacked now unless it is there already.

    Two processes that ask at once unpack once; one that is killed leaves nothing that looks finished.

    Raises:
        BadLayer, DigestMismatch, NotUnpacked, UnavailableError: see the leaf.
    """
    done = folder / image.descriptor.digest.hex
    if done.is_dir():
        return done
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _only_one(folder / f"{image.descriptor.digest.hex}.lock"):
            if done.is_dir():
                return done
            for leftover in folder.glob(f".{done.name}.*"):
                shutil.rmtree(leftover, ignore_errors=True)
            temporary = folder / f".{done.name}.{secrets.token_hex(4)}"
            temporary.mkdir()
            try:
                temporary.chmod(0o755)  # whatever our umask is
                total, moved = sum(layer.size for layer in image.manifest.layers), 0
                for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
                    _unpack_layer(source, layer, diff_id, temporary)
                    moved += layer.size
                    progress(moved, total)
                temporary.rename(done)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
    except OSError as error:
        raise NotUnpacked(f"{image.root.digest}: unpacking into {folder}: {error}") from error
    return done


def _unpack_layer(source: Target, layer: Descriptor, diff_id: Digest, directory: Path) -> None:
    name = f"{source.name}: layer {layer.digest}"
    with source.fetch(layer) as stored, _decompressed(layer, stored, name) as plain:
        hashing = _Hashing(plain)
        try:
            unpack_tar(hashing, directory, source=name)
            while hashing.read(BLOCK_SIZE):
                pass
        except (zstandard.ZstdError, zlib.error, gzip.BadGzipFile, EOFError) as error:
            raise BadLayer(f"{name}: {error}") from error
    if hashing.digest() != diff_id:
        raise BadLayer(f"{name}: want diff_id {diff_id}, got {hashing.digest()}")


@contextmanager
def _only_one(lock_file: Path) -> Iterator[None]:
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _decompressed(layer: Descriptor, stored: BinaryIO, name: str) -> Iterator[Readable]:
    """The tar of a layer. How it is compressed is seen in its bytes, as container engines do.

    Docker's archives have no media types: crane calls each of their layers gzip, buildpacks push plain tars under
    that name. The diff_id decides in the end whether these are the bytes that the image means.
    """
    if layer.media_type not in _TARS:
        raise BadLayer(f"{name}: want a tar, gzip or zstd layer, got {layer.media_type[:100]!r}")
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


class _Hashing:
    """Passes bytes through and knows their sha256."""

    def __init__(self, inner: Readable) -> None:
        self._inner, self._hash = inner, hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._inner.read(size)
        self._hash.update(data)
        return data

    def digest(self) -> Digest:
        return Digest("sha256:" + self._hash.hexdigest())
