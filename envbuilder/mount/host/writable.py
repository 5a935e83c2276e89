"""A writable layer over a read-only tree, thrown away with the mount."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from envbuilder.mount.host import kernel


def mount_writable(lower: Path, scratch: Path, root: Path, *, name: str, nosuid: bool) -> list[Path]:
    """Mount ``lower`` at ``root`` with what is written going to ``scratch``, a folder to be made.

    Gives the mount points, newest first.

    Raises:
        MountRefused: neither the folder nor memory will do.
    """
    scratch.mkdir(mode=0o700, parents=True)
    try:
        _mount(lower, scratch, root, name=name, nosuid=nosuid)
    except kernel.MountRefused as error:
        # The scratch folder may itself lie on an overlay or a network file system: memory will do.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EREMOTE):
            raise
        import logging  # noqa: PLC0415  seldom needed

        logging.getLogger(__name__).info("%s cannot hold a writable layer (%s): using memory", scratch, error)
        kernel.mount_tmpfs(scratch, name=name)
        try:
            _mount(lower, scratch, root, name=name, nosuid=nosuid)
        except kernel.MountRefused:
            kernel.unmount(scratch, force=True)
            raise
        return [root, scratch]
    return [root]


def _mount(lower: Path, scratch: Path, root: Path, *, name: str, nosuid: bool) -> None:
    for part in ("upper", "work"):
        (scratch / part).mkdir()
    # The root of an overlay is its upper folder, mode and owner too.
    like = lower.stat()
    os.chown(scratch / "upper", like.st_uid, like.st_gid)
    (scratch / "upper").chmod(stat.S_IMODE(like.st_mode))
    folders = (lower, scratch / "upper", scratch / "work", root)
    kernel.mount_overlay(*folders, name=name, thrown_away=True, nosuid=nosuid)
