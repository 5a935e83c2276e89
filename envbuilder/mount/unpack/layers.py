"""An image unpacked into a directory: the last resort where EROFS or FUSE are missing, and for foreign images.

What lies in its layers is laid into the tree by untar.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import HostError
from envbuilder.image.inspect import OpenImage
from envbuilder.image.plain import check_media_type, plain_tar, proved
from envbuilder.layer.kept_tree import kept_tree
from envbuilder.mount.unpack.untar import unpack_tar
from envbuilder.store.target import Target


class NotUnpacked(HostError):
    """The disk refused what a layer holds."""

    hint = "Free disk space, or choose a cache folder on an ordinary Linux file system."


def unpacked(image: OpenImage, source: Target, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """The root file system of ``image`` below ``folder``, unpacked now unless it is there already, whole.

    Raises:
        BadLayer, DigestMismatch, NotUnpacked, UnavailableError: see the leaf.
    """

    def fill(directory: Path) -> None:
        total, moved = sum(layer.size for layer in image.manifest.layers), 0
        for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True):
            _unpack_layer(source, layer, diff_id, directory)
            moved += layer.size
            progress(moved, total)

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)  # setuid files of strangers are nobody's to find, whoever made the folder
        return kept_tree(folder / image.descriptor.digest.hex, fill)
    except OSError as error:
        raise NotUnpacked(f"{image.root.digest}: unpacking into {folder}: {error}") from error


def _unpack_layer(source: Target, layer: Descriptor, diff_id: Digest, directory: Path) -> None:
    name = f"{source.name}: layer {layer.digest}"
    check_media_type(layer, name)
    with (
        source.fetch(layer) as stored,
        plain_tar(stored) as plain,
        proved(plain, layer, diff_id, name) as tar,
    ):
        unpack_tar(tar, directory, source=name)
