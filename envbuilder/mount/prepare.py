"""The EROFS metadata of an image as a verified file, and what it says about its devices."""

from __future__ import annotations

import struct
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.errors import IntegrityError
from envbuilder.image.inspect import LazyImage, fetch_metadata
from envbuilder.layer.chunks import index_range
from envbuilder.mount.chunks.store import put_file, sync_file
from envbuilder.mount.host import kernel
from envbuilder.store.begun import begun
from envbuilder.store.target import Target

# The super block begins at byte 1024 (lazy_start.md 2.1).
_SUPER, _MAGIC = 1024, 0xE0F5E1E2
_BLOCK_BITS_AT, _DEVICES_AT, _SLOT_AT = _SUPER + 12, _SUPER + 86, _SUPER + 88
_SLOT = struct.Struct("<64sIIHH")
_SLOT_SIZE = 128
#: Bytes of a layer: 16 TiB at 4 KiB blocks, what EROFS can address.
_MAX_DEVICE = 1 << 44


class ForeignMetadata(IntegrityError):
    """EROFS metadata that do not fit the layers of their image."""


class MetadataRead:
    """Gets the metadata of an image in a thread of its own, while the rest of the image is read."""

    def __init__(self, source: Target, cache: Path) -> None:
        self._source, self._cache = source, cache
        self._file: Future[Path] | None = None

    def begin(self, lazy: LazyImage) -> None:
        """Get those of ``lazy``."""
        self._file = begun(partial(metadata_file, self._source, lazy, self._cache), "metadata")

    def file(self, lazy: LazyImage) -> Path:
        """As ``metadata_file``."""
        if self._file is None:
            self.begin(lazy)
            assert self._file is not None
        return self._file.result()


def metadata_file(source: Target, lazy: LazyImage, cache: Path) -> Path:
    """The EROFS image to mount, as a file below ``cache``; its digest is checked at every use.

    Raises:
        BrokenImage, DigestMismatch: not what the manifest names. StoreRefused: no room.
    """
    file = cache / "metadata" / f"{lazy.metadata_digest.hex}.erofs"
    try:
        if Digest.of(file.read_bytes()) == lazy.metadata_digest:
            return file
    except OSError:
        pass  # not here yet
    data = fetch_metadata(source, lazy)
    # The disk takes its time, for which no start need wait: who finds other bytes after a power cut asks again.
    put_file(file, data, durable=False)
    begun(partial(sync_file, file), "metadata on disk", finishing=True)
    return file


def device_sizes(metadata: Path, lazy: LazyImage) -> tuple[int, ...]:
    """Bytes of each device, as the device table says, which must name the layers of ``lazy`` in order.

    Raises:
        ForeignMetadata: other devices, or a layer that has no chunk index.
    """
    with metadata.open("rb") as file:
        head = file.read(4096)
        count, slots = struct.unpack_from("<HH", head, _DEVICES_AT) if len(head) == 4096 else (0, 0)
        if len(head) < 4096 or struct.unpack_from("<I", head, _SUPER)[0] != _MAGIC:
            raise ForeignMetadata(f"{lazy.metadata.digest}: not an EROFS image")
        if count != len(lazy.devices) or count > kernel.MAX_DEVICES:
            raise ForeignMetadata(f"{lazy.metadata.digest}: want {len(lazy.devices)} devices, got {count}")
        file.seek(slots * _SLOT_SIZE)
        table = file.read(count * _SLOT_SIZE)
    bits = head[_BLOCK_BITS_AT]
    if not 9 <= bits <= 12:
        raise ForeignMetadata(f"{lazy.metadata.digest}: want blocks of 512 to 4096 bytes, got 2^{bits}")
    sizes = []
    for number, blob in enumerate(lazy.devices):
        tag, blocks, _, blocks_high, _ = _SLOT.unpack_from(table, number * _SLOT_SIZE)
        size = (blocks | blocks_high << 32) << bits
        if tag != blob.digest.hex.encode() or size > _MAX_DEVICE:
            raise ForeignMetadata(f"{lazy.metadata.digest}: device {number} is not layer {blob.digest}")
        if index_range(blob, source=str(blob.digest)) is None:
            raise ForeignMetadata(f"{blob.digest}: has no chunk index")
        sizes.append(size)
    return tuple(sizes)
