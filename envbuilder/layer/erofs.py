"""Write an EROFS image that holds names and attributes; file data stay where they are.

A regular file's data lie in one piece in some *device*, here the uncompressed tar of a layer, at
a multiple of the block size; its inode has one chunk that names device and block. The kernel mounts
the image with one ``device=`` per device, in order. Usable alone: nothing here knows layers.
Format notes: docs/formats/lazy-index.md.

Same tree, same bytes: fixed uuid, times and order. 100,000 inodes take about two seconds.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envbuilder.errors import SpecError
from envbuilder.layer import erofs_format as disk
from envbuilder.layer.erofs_format import Device

#: Name of these rules: raise the number when any byte of any image would change.
EROFS_WRITER = "erofs/2"
#: log2 of the block size: 4 KiB, the only one that erofs-utils before 1.6 reads.
BLOCK_BITS = 12
#: Images are told apart by digest; this only says who wrote them: uuid5 of nothing, fixed.
_UUID = bytes.fromhex("656e766275696c6465720001000000ef")
#: Blocks that 32-bit addresses reach, over all devices.
_MAX_BLOCKS = 0xFFFFFFFF
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
#: Entries that the chunk table of one file may have, so that its last block can be one of the image.
_MAX_CHUNKS = 8192


class ImageTooLarge(SpecError):
    """More data, names or devices than an EROFS image without the 48BIT feature can address."""


@dataclass(slots=True, kw_only=True, eq=False)  # frozen, each would take 1.6 us to make, not 0.5
class Inode:
    """One inode, to be left as it is made. Several names of one object are hard links.

    data: of a regular file with bytes: number of its device, from 0, and byte offset in it; -1: ``tail`` is all of it.
    tail: of a regular file, if not empty: its bytes behind the last whole block, which the image then
        holds itself and pads with zeros; else a mapping shows what follows the file in the device.
    target: of a symbolic link. rdev: (major, minor) of a device. children: of a directory, by name.
    mtime_s: None for the time of the whole image, which costs nothing.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    data: tuple[int, int] = (0, 0)
    tail: bytes = b""
    target: bytes = b""
    rdev: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[str, bytes], ...] = ()
    children: Mapping[bytes, Inode] = field(default_factory=dict)
    mtime_s: int | None = None


class _Placement:
    """An inode on its way to disk: what is known before any address is."""

    __slots__ = (
        "address",
        "blocks",
        "chunk_bits",
        "chunks",
        "extended",
        "inode",
        "links",
        "names",
        "parent",
        "start",
        "tail",
        "xattrs",
    )

    def __init__(self, inode: Inode, parent: _Placement | None) -> None:
        self.inode = inode
        self.parent = parent or self
        self.links = 0
        self.xattrs = b""
        self.extended = False
        self.address = 0  # byte of the image where the inode begins
        self.blocks = self.tail = 0  # of our own data: whole blocks elsewhere, bytes behind the inode
        self.chunks = self.chunk_bits = 0  # of a file with data: entries of its table, log2 of the blocks of each
        self.start = disk.NO_BLOCK
        self.names: Sequence[Sequence[tuple[bytes, _Placement]]] = ()  # of a directory: entries of each block


def write_erofs(root: Inode, devices: Sequence[Device], *, mtime_s: int, block_bits: int = BLOCK_BITS) -> bytes:
    """The image of the tree below ``root``; every time stamp is ``mtime_s``, unless an inode has its own.

    Raises:
        ImageTooLarge: over 2^32 blocks in all, over 65535 devices.
        UnsupportedXattr: an extended attribute that EROFS cannot store.
    """
    block = 1 << block_bits
    placements = _number(root, block)
    end = disk.DEVICES_OFFSET + disk.DEVICE_SIZE * len(devices)
    for placement in placements.values():
        end = _place(placement, end, block)
    meta_blocks = -(-end >> block_bits)
    blocks = meta_blocks
    for placement in placements.values():
        if placement.blocks:
            placement.start, blocks = blocks, blocks + placement.blocks
    address = blocks + sum(-(-device.size >> block_bits) for device in devices)
    root_nid = placements[id(root)].address // disk.SLOT
    if address > _MAX_BLOCKS or root_nid > disk.MAX_ROOT_NID or len(devices) > _U16:
        raise ImageTooLarge(
            f"EROFS: {len(devices)} devices, {address} blocks of {block} bytes: want at most 2^32 blocks"
        )
    image = bytearray(blocks << block_bits)
    image[disk.SUPER_OFFSET : disk.DEVICES_OFFSET + disk.DEVICE_SIZE * len(devices)] = disk.super_block(
        block_bits=block_bits,
        root_nid=root_nid,
        inodes=len(placements),
        blocks=blocks,
        epoch_s=mtime_s,
        uuid=_UUID,
        devices=devices,
    )
    for placement in placements.values():
        _write(placement, image, mtime_s, block_bits)
    disk.sealed(image, block)
    return bytes(image)


def _name(item: tuple[bytes, Inode]) -> bytes:
    return item[0]


def _number(root: Inode, block: int) -> dict[int, _Placement]:
    """Every inode once, breadth first (the root must lie near the beginning), with its links and size."""
    first = _Placement(root, None)
    placements = {id(root): first}
    queue = deque([first])
    while queue:
        here = queue.popleft()
        here.links += 2
        names: dict[bytes, _Placement] = {}
        for name, child in sorted(here.inode.children.items(), key=_name):
            known = placements.get(id(child))
            if known is None:
                known = placements[id(child)] = _Placement(child, here)
                if stat.S_ISDIR(child.mode):
                    queue.append(known)
            if stat.S_ISDIR(child.mode):
                here.links += 1
            else:
                known.links += 1
            names[name] = known
        names |= {b".": here, b"..": here.parent}  # whatever the children are called
        here.names = _blocks_of_names(names, block)
    for placement in placements.values():
        inode = placement.inode
        if inode.xattrs:
            placement.xattrs = disk.xattr_area(inode.xattrs, source="EROFS")
        wide = inode.uid > _U16 or inode.gid > _U16 or placement.links > _U16 or inode.size > _U32
        placement.extended = wide or inode.mtime_s is not None
    return placements


def _blocks_of_names(names: Mapping[bytes, _Placement], block: int) -> list[list[tuple[bytes, _Placement]]]:
    """The entries of a directory in their order, cut so that each part fills a block at most."""
    parts: list[list[tuple[bytes, _Placement]]] = [[]]
    room = block
    for name in sorted(names):
        need = disk.DIRENT.size + len(name)
        if need > room:
            parts.append([])
            room = block
        room -= need
        parts[-1].append((name, names[name]))
    return parts


def _place(placement: _Placement, end: int, block: int) -> int:
    """Give the inode its address at or after ``end``; return where it ends."""
    header = (disk.EXTENDED_SIZE if placement.extended else disk.COMPACT_SIZE) + len(placement.xattrs)
    start = -(-end // disk.SLOT) * disk.SLOT
    if stat.S_ISREG(placement.inode.mode):
        _choose_chunks(placement, block)
        behind = -header % disk.CHUNK.size + placement.chunks * disk.CHUNK.size if placement.chunks else 0
    else:
        placement.blocks, behind = divmod(_own_size(placement, block), block)
        if behind and header + behind > block:
            placement.blocks, behind = placement.blocks + 1, 0
        elif (start + header) % block + behind > block:
            # What stands behind an inode must not cross a block border.
            start = -(-start // block) * block
        placement.tail = behind
    placement.address = start
    return start + header + behind


def _own_size(placement: _Placement, block: int) -> int:
    """Bytes that the image itself holds for an inode: a directory's entries, a link's target."""
    if placement.names:
        last = placement.names[-1]
        return (len(placement.names) - 1) * block + sum(disk.DIRENT.size + len(name) for name, _ in last)
    return len(placement.inode.target)


def _choose_chunks(placement: _Placement, block: int) -> None:
    """One chunk for the whole of a file; or so many that its last block, which the image holds, is one of its own."""
    inode = placement.inode
    last = (inode.size - 1) // block
    if not inode.size:
        return
    placement.chunk_bits = min(last.bit_length(), disk.MAX_CHUNK_BITS)
    placement.chunks = (last >> placement.chunk_bits) + 1
    if inode.tail and (inode.data[0] < 0 or len(inode.tail) == inode.size % block):
        first = (inode.size - len(inode.tail)) // block
        bits = (first & -first).bit_length() - 1 if first else (last - first).bit_length()
        if (first >> bits) < _MAX_CHUNKS:
            placement.chunks, placement.chunk_bits, placement.blocks = (first >> bits) + 1, bits, last - first + 1


def _write(
    placement: _Placement,
    image: bytearray,
    mtime_s: int,
    block_bits: int,
) -> None:
    """Put one inode, what follows it and its own blocks into ``image``."""
    inode, kind, block = placement.inode, stat.S_IFMT(placement.inode.mode), 1 << block_bits
    if placement.chunks == 1 and not (placement.extended or placement.xattrs or placement.blocks):
        # Most of an image is such files: what follows would say the same in twice the time.
        device, offset = inode.data
        owner, end = (inode.uid, inode.gid), placement.address + disk.COMPACT_SIZE + disk.CHUNK.size
        image[placement.address : end] = disk.compact_file(
            inode.mode, placement.links, inode.size, placement.chunk_bits, owner, device + 1, offset >> block_bits
        )
        return
    own, size, where = b"", inode.size, placement.start
    if kind == stat.S_IFDIR:
        blocks = [_directory_block(names) for names in placement.names]
        own = b"".join(part.ljust(block, b"\0") for part in blocks[:-1]) + blocks[-1]
        size = len(own)
    elif kind == stat.S_IFLNK:
        own, size = inode.target, len(inode.target)
    elif kind == stat.S_IFREG:
        own = inode.tail if placement.blocks else b""
        where = placement.chunk_bits | disk.CHUNK_INDEXES if size else disk.NO_BLOCK
    else:
        size, where = 0, disk.device_number(*inode.rdev)
    layout = disk.CHUNK_BASED if placement.chunks else disk.FLAT_INLINE if placement.tail else disk.FLAT_PLAIN
    count = 1 + (len(placement.xattrs) - 12) // 4 if placement.xattrs else 0
    owner = (inode.uid, inode.gid)
    if placement.extended:
        mtime_s = mtime_s if inode.mtime_s is None else inode.mtime_s
        head = disk.extended_inode(layout, count, inode.mode, placement.links, size, where, owner, mtime_s)
    else:
        head = disk.compact_inode(layout, count, inode.mode, placement.links, size, where, owner)
    whole = placement.blocks << block_bits if placement.tail else len(own)
    record = head + placement.xattrs + own[whole:] + _chunk_table(placement, block_bits)
    image[placement.address : placement.address + len(record)] = record
    if whole:
        image[placement.start << block_bits : (placement.start << block_bits) + whole] = own[:whole]


def _chunk_table(placement: _Placement, block_bits: int) -> bytes:
    """Where the chunks of a file lie; with the zeros before it, as it is aligned to an entry."""
    if not placement.chunks:
        return b""
    device, offset = placement.inode.data
    first, step = offset >> block_bits, 1 << placement.chunk_bits
    places = [(0, device + 1, first + number * step) for number in range(placement.chunks)]
    if placement.blocks:
        places[-1] = (0, 0, placement.start)
    return bytes(-len(placement.xattrs) % disk.CHUNK.size) + b"".join(disk.CHUNK.pack(*place) for place in places)


def _directory_block(entries: Sequence[tuple[bytes, _Placement]]) -> bytes:
    offset, pack = disk.DIRENT.size * len(entries), disk.DIRENT.pack
    dirents = []
    for name, placement in entries:
        dirents.append(pack(placement.address // disk.SLOT, offset, disk.FILE_TYPES[placement.inode.mode >> 12], 0))
        offset += len(name)
    return b"".join(dirents) + b"".join([name for name, _ in entries])
