"""A hash of every page of a layer's tar, under one root that the manifest names.

The chunk index proves whole chunks as they lie in the blob. A hot bundle (mount/startup/hot.py) holds single
pages of many chunks, and may come from whoever can push to a repository: with this tree each page
is proved against the image's own digest, and a bundle that lies is only of no use.

    leaf: SHA-256 of a page; node: SHA-256 of the leaves of a group; root: SHA-256 of all nodes

A group is 64 pages, however large the chunks of the layer are: of the same tar all builds have the same root.
Every level has a place and a length that the layer's size gives, so that none can be taken for another.
"""

from __future__ import annotations

import hashlib

from envbuilder.digest import Digest

#: Bytes of a page: what the kernel reads at least, and an EROFS block.
PAGE_SIZE = 4096
#: Pages of a group, and its bytes. What is proved of a group needs the leaves of all of it: 2 KiB.
GROUP_PAGES = 64
GROUP_SIZE = GROUP_PAGES * PAGE_SIZE
#: Bytes of a leaf and of a node.
HASH_SIZE = 32


def leaves(data: bytes | memoryview) -> bytes:
    """The leaves of pages, one behind the other."""
    view, sha256 = memoryview(data), hashlib.sha256
    return b"".join([sha256(view[at : at + PAGE_SIZE]).digest() for at in range(0, len(view), PAGE_SIZE)])


def node(group_leaves: bytes) -> bytes:
    """The node over the leaves of a group."""
    return hashlib.sha256(group_leaves).digest()


def nodes(chunk: bytes | memoryview) -> bytes:
    """The nodes of whole groups, the last of which may be short, one behind the other."""
    view = memoryview(chunk)
    return b"".join([node(leaves(view[at : at + GROUP_SIZE])) for at in range(0, len(view), GROUP_SIZE)])


def root(all_nodes: bytes | bytearray) -> Digest:
    """The root over the nodes of a layer."""
    return Digest("sha256:" + hashlib.sha256(all_nodes).hexdigest())
