"""Built layers as one EROFS image whose file data lie in their tars: what a lazy start mounts."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence

from envbuilder.layer.erofs import BLOCK_BITS, Inode, write_erofs
from envbuilder.layer.erofs_format import Device
from envbuilder.layer.merge import Node, merge
from envbuilder.layer.model import Layer
from envbuilder.layer.pax import encode
from envbuilder.layer.tree import SOURCE_EPOCH_S, Placed


def erofs_metadata(layers: Sequence[Layer]) -> bytes:
    """The EROFS image of ``layers`` laid over each other; device n is the uncompressed tar of layer n."""
    devices = [Device(layer.blob.digest.hex, layer.tar_size) for layer in layers]
    return merged_metadata([layer.placed for layer in layers], devices)


def merged_metadata(
    layers: Sequence[Sequence[Placed]],
    devices: Sequence[Device],
    *,
    block_bits: int = BLOCK_BITS,
    below: Node | None = None,
) -> bytes:
    """The same for any layers; an entry with an empty path is the root of its layer.

    below: the root of a tree of the first devices, over which ``layers``, of the last, are laid.
    """
    first = len(devices) - len(layers)
    merged = merge([[placed for placed in layer if placed.path] for layer in layers], onto=below, first=first)
    for root in (placed for layer in layers for placed in layer if not placed.path):
        merged.root.placed = root
    nodes = list(merged.nodes())
    # Of most files there is one name: only those that another is a hard link to are looked up.
    linked = {node.placed.link for node in nodes if node.placed.link and stat.S_ISREG(node.placed.mode)}
    names: dict[int, Inode] = {}
    files: dict[tuple[int, str], Inode] = {}
    # Parents come before their children in a walk, so backwards every directory's children are made already.
    for node in reversed(nodes):
        placed = node.placed
        if stat.S_ISDIR(placed.mode):
            names[id(node)] = _directory(node, names)
        elif placed.link in linked or placed.path in linked:
            inode = node.inode
            names[id(node)] = files.get(inode) or files.setdefault(inode, _file(node))
        else:
            names[id(node)] = _file(node)
    return write_erofs(_directory(merged.root, names), devices, mtime_s=SOURCE_EPOCH_S, block_bits=block_bits)


def _directory(node: Node, names: Mapping[int, Inode]) -> Inode:
    placed = node.placed
    children = {encode(name): names[id(child)] for name, child in node.children.items()}
    return Inode(
        mode=placed.mode,
        uid=placed.uid,
        gid=placed.gid,
        xattrs=placed.xattrs,
        children=children,
        mtime_s=_own_time(placed),
    )


def _own_time(placed: Placed) -> int | None:
    return None if placed.mtime_s == SOURCE_EPOCH_S else placed.mtime_s


def _file(node: Node) -> Inode:
    placed = node.placed
    return Inode(
        mode=placed.mode,
        uid=placed.uid,
        gid=placed.gid,
        size=placed.size,
        data=(node.layer, placed.offset),
        tail=placed.tail,
        target=encode(placed.link) if stat.S_ISLNK(placed.mode) else b"",
        rdev=placed.device,
        xattrs=placed.xattrs,
        mtime_s=_own_time(placed),
    )
