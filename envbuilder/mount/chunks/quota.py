"""What the chunk store may take, as a setting says it: all that a start needs to know of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import SpecError

_QUOTA = re.compile(r"(\d{1,15})(%|kB|MB|GB|TB|)")
_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How much the store may take: ``size`` bytes, or ``share`` of what its file system has in all. 0: no limit."""

    size: int = 0
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Quota:
        """``50GB``, ``80%`` of the file system, or ``none``.

        Raises:
            SpecError: it is none of these.
        """
        if text == "none":
            return cls()
        match = _QUOTA.fullmatch(text)
        if match is None or not int(match[1]) or (match[2] == "%" and int(match[1]) > 100):
            raise SpecError(f"quota: want a size such as 50GB, a share such as 80%, or none, got {text[:40]!r}")
        if match[2] == "%":
            return cls(share=int(match[1]) / 100)
        return cls(size=int(match[1]) * _UNITS[match[2]])

    def limit(self, directory: Path) -> int | None:
        """Bytes for the store below ``directory``; None: no limit."""
        if not self.size and not self.share:
            return None
        found = os.statvfs(existing(directory))
        return self.size or int(found.f_blocks * found.f_frsize * self.share)


NO_QUOTA = Quota()


def existing(directory: Path) -> Path:
    """``directory``, or the nearest above it that is there."""
    while not directory.exists():
        directory = directory.parent
    return directory
