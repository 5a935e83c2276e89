"""Indexes of Debian archives from one lock to the next: apt asks whether they are still so, and fetches what is not.

apt checks a signature at each use, but not again a list that the signed file still names: so these are in a folder that
nobody else may write.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.errors import HostError
from envbuilder.store.files import disk_errors, exclusive

_log = logging.getLogger("envbuilder.lock")


@contextmanager
def kept_lists(kept: Path | None, what: Sequence[str], otherwise: Path) -> Iterator[Path]:
    """A folder for apt's lists of ``what`` (sources and architecture), held against other locks that want the same.

    kept: where such folders are; where there is none, or it is not ours alone, ``otherwise`` is given.
    """
    folder = kept and kept / Digest.of(canonical_json([*what])).hex[:32]
    if folder is None or not _is_ours(folder):
        (otherwise / "partial").mkdir(parents=True)
        yield otherwise
        return
    with exclusive(folder / "envbuilder-lock"):
        yield folder


def _is_ours(folder: Path) -> bool:
    try:
        with disk_errors(folder):
            (folder / "partial").mkdir(mode=0o700, parents=True, exist_ok=True)
            for each in (folder.parent, folder):
                each.chmod(0o700)
                found = each.lstat()
                if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                    return False
    except HostError as error:
        _log.debug("lists of Debian archives are not kept: %s", error)
        return False
    return True
