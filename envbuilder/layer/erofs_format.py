"""EROFS on disk: the structures that our writer emits, each as bytes.

Source: the kernel's fs/erofs/erofs_fs.h and Documentation/filesystems/erofs.rst, as laid out in
lazy_start.md 2.1 to 2.3. All little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from envbuilder.errors import SpecError

#: Bytes of an inode slot; an inode's number (nid) is its address divided by this.
SLOT = 32
COMPACT_SIZE, EXTENDED_SIZE = 32, 64
#: Where the super block begins, and the device table right behind it.
SUPER_OFFSET, DEVICES_OFFSET, DEVICE_SIZE = 1024, 1152, 128
#: i_format, bits 1 to 3: all data in blocks; the last partial block behind the inode; a table of chunks there.
FLAT_PLAIN, FLAT_INLINE, CHUNK_BASED = 0, 2, 4
#: i_u of a chunk-based inode: log2 of the blocks of a chunk, and this bit for entries of 8 bytes with a device.
CHUNK_INDEXES = 0x20
MAX_CHUNK_BITS = 31
#: Start block of an inode that has no block.
NO_BLOCK = 0xFFFFFFFF
#: i_ino was for the stat of 32-bit machines; Linux makes it of the nid. A number for each costs a tenth of the image
#: as stored, and all of it is sent again with every change.
_NO_INO = 0
#: The root's nid is a u16 without the 48BIT feature.
MAX_ROOT_NID = 0xFFFF

_MAGIC = 0xE0F5E1E2
_COMPAT_SB_CHKSUM, _COMPAT_MTIME = 1, 2
_INCOMPAT_CHUNKED_FILE, _INCOMPAT_DEVICE_TABLE = 4, 8
_SUPER = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQ24x")
_DEVICE = struct.Struct("<64sIIHH52x")
_COMPACT = struct.Struct("<HHHHIIIIHH4x")
_EXTENDED = struct.Struct("<HHHHQIIIIQII16x")
_COMPACT_AND_CHUNK = struct.Struct("<HHHHIIIIHH4xHHI")
DIRENT = struct.Struct("<QHBB")
#: An entry of a chunk table: 0, device (0 is the image, n the n-th slot from 1), block in it.
CHUNK = struct.Struct("<HHI")
#: S_IFMT >> 12 -> file type of a directory entry.
FILE_TYPES = {8: 1, 4: 2, 2: 3, 6: 4, 1: 5, 12: 6, 10: 7}
#: Prefix of an extended attribute's name -> its index; the last two are whole names.
_XATTR_PREFIXES = (
    ("user.", 1),
    ("trusted.", 4),
    ("security.", 6),
    ("system.posix_acl_access", 2),
    ("system.posix_acl_default", 3),
)
_XATTR_HEADER = bytes(12)
_XATTR_NAME_MAX, _XATTR_VALUE_MAX = 0xFF, 0xFFFF


class UnsupportedXattr(SpecError):
    """An extended attribute whose name or size EROFS cannot store."""


@dataclass(frozen=True, slots=True)
class Device:
    """A file that has data: ``tag`` names it (the blob's digest in hex), ``size`` is in bytes."""

    tag: str
    size: int


def super_block(
    *,
    block_bits: int,
    root_nid: int,
    inodes: int,
    blocks: int,
    epoch_s: int,
    uuid: bytes,
    devices: Sequence[Device],
) -> bytes:
    """Bytes 1024 to the end of the device table, checksum left 0; devices follow the image in the address space."""
    super_ = _SUPER.pack(
        _MAGIC,
        0,
        _COMPAT_SB_CHKSUM | _COMPAT_MTIME,
        block_bits,
        0,
        root_nid,
        inodes,
        epoch_s,
        0,
        blocks,
        0,  # meta_blkaddr: nids count from the first byte of the image
        0,
        uuid,
        b"",
        _INCOMPAT_CHUNKED_FILE | _INCOMPAT_DEVICE_TABLE if devices else 0,
        0,
        len(devices),
        DEVICES_OFFSET // DEVICE_SIZE if devices else 0,
        0,
        0,
        0,
        0,
    )
    table, address = b"", blocks
    for device in devices:
        count = -(-device.size >> block_bits)
        table += _DEVICE.pack(device.tag.encode()[:64], count, address, 0, 0)
        address += count
    return super_ + table


def sealed(image: bytearray, block_size: int) -> None:
    """Put the super block's checksum into ``image``: CRC-32C from byte 1024 to the end of its block."""
    end = block_size if block_size > SUPER_OFFSET else SUPER_OFFSET + block_size
    struct.pack_into("<I", image, SUPER_OFFSET + 4, _crc32c(image[SUPER_OFFSET:end]))


def compact_inode(layout: int, xattr_count: int, mode: int, links: int, size: int, where: int, owner: tuple[int, int]) -> bytes:  # fmt: skip  # noqa: E501
    """A 32-byte inode; its mtime is the epoch of the super block."""
    return _COMPACT.pack(layout << 1, xattr_count, mode, links, size, 0, where, _NO_INO, *owner)


def compact_file(mode: int, links: int, size: int, chunk_bits: int, owner: tuple[int, int], device: int, block: int) -> bytes:  # fmt: skip  # noqa: E501
    """A compact inode of a file that is one chunk, and its table behind it: ``block`` of slot ``device``."""
    where = chunk_bits | CHUNK_INDEXES
    return _COMPACT_AND_CHUNK.pack(CHUNK_BASED << 1, 0, mode, links, size, 0, where, _NO_INO, *owner, 0, device, block)


def extended_inode(layout: int, xattr_count: int, mode: int, links: int, size: int, where: int, owner: tuple[int, int], mtime_s: int) -> bytes:  # fmt: skip  # noqa: E501
    """A 64-byte inode."""
    return _EXTENDED.pack(layout << 1 | 1, xattr_count, mode, 0, size, where, _NO_INO, *owner, mtime_s, 0, links)


def device_number(major: int, minor: int) -> int:
    """A device number as inodes have it (the kernel's new_encode_dev)."""
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def device_parts(number: int) -> tuple[int, int]:
    """Major and minor of a device number that an inode has."""
    return number >> 8 & 0xFFF, number & 0xFF | number >> 12 & ~0xFF


def xattr_area(xattrs: Sequence[tuple[str, bytes]], *, source: str) -> bytes:
    """What follows an inode with ``xattrs``; its i_xattr_icount is 1 + (bytes - 12) / 4.

    Raises:
        UnsupportedXattr: an attribute of another name space, or too long.
    """
    if not xattrs:
        return b""
    area = bytearray(_XATTR_HEADER)
    for name, value in xattrs:
        prefix, index = next((known for known in _XATTR_PREFIXES if name.startswith(known[0])), ("", 0))
        rest = name.removeprefix(prefix).encode()
        if not prefix or bool(rest) != prefix.endswith(".") or len(rest) > _XATTR_NAME_MAX:
            raise UnsupportedXattr(
                f"{source}: extended attribute {name[:100]!r}: want user., trusted., security. or an ACL"
            )
        if len(value) > _XATTR_VALUE_MAX:
            raise UnsupportedXattr(f"{source}: extended attribute {name!r}: want at most {_XATTR_VALUE_MAX} bytes")
        area += struct.pack("<BBH", len(rest), index, len(value)) + rest + value
        area += bytes(-len(area) % 4)
    return bytes(area)


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC32C = _crc32c_table()


def _crc32c(data: bytes | bytearray) -> int:
    """CRC-32C with seed 0xFFFFFFFF and no final inversion, as erofs_superblock_csum_verify wants it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 0xFF]
    return value
