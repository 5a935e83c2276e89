"""An image that others built over one of ours, with ``FROM`` say: its first layers are ours, byte for byte.

What is known of them hangs off the image's own manifest: builders keep the base's annotations, of which one names
its EROFS manifest, or note the base's own manifest, which does. That one proves the chunks of each layer, and its
metadata are the tree below the others' layers.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from envbuilder.digest import Descriptor, Digest, InvalidDigest
from envbuilder.errors import EnvbuilderError, UnavailableError
from envbuilder.image.choice import read_document
from envbuilder.image.inspect import LazyImage, OpenImage, lazy_twin
from envbuilder.layer.erofs_format import device_parts
from envbuilder.layer.merge import IMPLIED, Node
from envbuilder.layer.tree import Placed
from envbuilder.mount.erofstree import BadTree, ErofsTree, Extent
from envbuilder.mount.prepare import device_sizes, metadata_file
from envbuilder.mount.startup.traces import FoundTrace, recorded_of
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import InvalidReference, RegistryReference, parse_reference
from envbuilder.store.target import NotFound, SiblingTarget, Target

_log = logging.getLogger(__name__)
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Based:
    """The base of an image: its layers as they prove their chunks, bytes of their tars, and the root of its tree."""

    layers: tuple[Descriptor, ...]
    sizes: tuple[int, ...]
    root: Node


def may_be_based(manifest: Manifest) -> bool:
    """Whether it is worth asking what ``manifest`` is laid over: ours has such layers."""
    return any(layer.media_type == media_types.OCI_LAYER_TAR_ZSTD for layer in manifest.layers)


def read_based(manifest: Manifest, source: Target, cache: Path) -> Based | None:
    """What ``manifest``, of others, is laid over, if that is an image of ours; None else, or where it cannot be had.

    Raises:
        UnavailableError: who has it does not answer now.
    """

    def read(place: Target, lazy: LazyImage) -> Based:
        metadata = metadata_file(place, lazy, cache)
        return Based(layers=lazy.devices, sizes=device_sizes(metadata, lazy), root=read_tree(metadata))

    return _first(manifest, source, read)


def proved_layers(manifest: Manifest, source: Target) -> tuple[Descriptor, ...]:
    """The layers of ``manifest``, of others: the first as its base describes them, if that is an image of ours.

    Raises:
        UnavailableError: who has the base does not answer now.
    """
    ours = _first(manifest, source, lambda _place, lazy: lazy.devices) or ()
    return (*ours, *manifest.layers[len(ours) :])


def _first(manifest: Manifest, source: Target, read: Callable[[Target, LazyImage], _Read]) -> _Read | None:
    """What ``read`` makes of the base of ``manifest``, at the first place that has it."""
    places = base_places(manifest, source) if may_be_based(manifest) else ()
    return next((found for place in places if (found := _at(manifest, place, read)) is not None), None)


def _at(manifest: Manifest, place: Target, read: Callable[[Target, LazyImage], _Read]) -> _Read | None:
    try:
        lazy = _base(manifest, place)
        return read(place, lazy) if lazy else None
    except UnavailableError:
        raise
    except NotFound:
        return None
    except EnvbuilderError as error:  # without it the image starts, too
        _log.warning("%s: base not used: %s", place.name, error)
        return None


def base_places(manifest: Manifest, source: Target) -> Iterator[Target]:
    """Where the base's documents may be: in a repository of its name, and beside the image.

    Of the registry that has the image, whatever the host in the name: another one is none that was asked for here, and
    images that were copied to another registry mostly keep the names of their repositories.
    """
    name = manifest.annotations.get(media_types.BASE_NAME, "")
    with suppress(InvalidReference):
        reference = parse_reference(name) if name else None
        if isinstance(reference, RegistryReference) and isinstance(source, SiblingTarget):
            yield source.sibling(reference.repository)
    yield source


def _base(manifest: Manifest, place: Target) -> LazyImage | None:
    """The EROFS manifest of the base, if the image begins with its layers."""
    lazy = lazy_twin(place, manifest)
    if lazy is None and (noted := manifest.annotations.get(media_types.BASE_DIGEST)):
        try:
            base = read_document(place, place.lookup(str(Digest.parse(noted))))
        except InvalidDigest:
            return None
        lazy = lazy_twin(place, base) if isinstance(base, Manifest) else None
    if lazy is None:
        return None
    there = [device.digest for device in lazy.devices]
    return lazy if there == [layer.digest for layer in manifest.layers[: len(there)]] else None


def base_trace(image: OpenImage, source: Target) -> tuple[FoundTrace, Target] | None:
    """The start-up trace of what ``image`` is laid over, for ``image``, and who has its bundle; None: there is none."""
    noted = image.manifest.annotations.get(media_types.BASE_DIGEST)
    if not noted or not may_be_based(image.manifest):
        return None
    found = ((_trace(image, noted, place), place) for place in base_places(image.manifest, source))
    return next(((trace, place) for trace, place in found if trace), None)


def _trace(image: OpenImage, noted: str, place: Target) -> FoundTrace | None:
    try:
        # A list of referrers goes by the digest of what they refer to.
        base = Descriptor(media_type=media_types.OCI_MANIFEST, digest=Digest.parse(noted), size=0)
        found = recorded_of(place, base)
        return found.on(image) if found else None
    except EnvbuilderError as error:
        _log.debug("%s: trace of the base not used: %s", place.name, error)
        return None


def read_tree(metadata: Path) -> Node:
    """The root of the tree in EROFS metadata of ours, as ``merge`` makes such.

    Raises:
        BadTree: our writer does not make such.
    """
    tree, first_names = ErofsTree(metadata), dict[int, str]()
    root = Node(_placed(tree, tree.root, "", {}), 0)
    todo = [("", tree.root, root)]
    seen = {tree.root}
    while todo:
        path, nid, node = todo.pop()
        for name, (child, _) in tree.names(nid).items():
            if name in (b".", b".."):
                continue
            text = name.decode("utf-8", "surrogateescape")
            below = f"{path}/{text}" if path else text
            placed = _placed(tree, child, below, first_names)
            # Of a file that is in the metadata alone, no layer.
            device = tree.extents(child)[0].device if placed.size else IMPLIED
            made = node.children[text] = Node(placed, device)
            if made.is_directory:
                if child in seen:
                    raise BadTree(f"{metadata.name}: a directory with two names")
                seen.add(child)
                todo.append((below, child, made))
    return root


def _placed(tree: ErofsTree, nid: int, path: str, first_names: dict[int, str]) -> Placed:
    node = tree.node(nid)
    link, offset, tail = "", 0, b""
    if stat.S_ISLNK(node.mode):
        link = tree.target(nid).decode("utf-8", "surrogateescape")
    elif stat.S_ISREG(node.mode):
        if node.links > 1:
            link = first_names.setdefault(nid, path)
            link = "" if link == path else link
        *in_layer, last = tree.extents(nid) or (Extent(0, node.size, IMPLIED, 0),)
        (in_layer if last.device >= 0 else []).append(last)
        if last.device < 0:
            tail = tree.image[last.offset : last.offset + last.size]
        if len(in_layer) > 1 or sum(each.size for each in in_layer) + len(tail) != node.size:
            raise BadTree(f"{path}: its data are not one run of a layer")
        offset = in_layer[0].offset if in_layer else 0
    return Placed(
        path=path,
        mode=node.mode,
        uid=node.uid,
        gid=node.gid,
        size=node.size if stat.S_ISREG(node.mode) else 0,
        link=link,
        device=device_parts(node.rdev),
        xattrs=tuple(sorted((name.decode("utf-8", "surrogateescape"), value) for name, value in tree.xattrs(nid))),
        offset=offset,
        tail=tail,
        mtime_s=node.mtime_s,
    )
