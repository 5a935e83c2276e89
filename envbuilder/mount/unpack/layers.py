"""An image unpacked into a directory: the last resort where EROFS or FUSE are missing, and for foreign images.

What lies in its layers is laid into the tree by untar.py.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import HostError
from envbuilder.image.inspect import OpenImage
from envbuilder.image.plain import check_media_type, plain_tar, proved
from envbuilder.mount.unpack.untar import unpack_tar
from envbuilder.store.target import Target


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
        with only_one(folder / f"{image.descriptor.digest.hex}.lock"):
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
    check_media_type(layer, name)
    with (
        source.fetch(layer) as stored,
        plain_tar(stored) as plain,
        proved(plain, layer, diff_id, name) as tar,
    ):
        unpack_tar(tar, directory, source=name)


@contextmanager
def only_one(lock_file: Path) -> Iterator[None]:
    """Hold ``lock_file``: whoever else asks waits.

    Raises:
        OSError: it cannot be made.
    """
    lock = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
