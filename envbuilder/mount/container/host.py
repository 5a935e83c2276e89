"""What of the host a container is made from, besides its image: GPUs' specifications, files, limits."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Where the host describes its devices; later ones win (CDI SPEC.md, "CDI JSON Specification").
CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
#: Files of the host that tell a job on the host's network who is who.
_FILES = ("/etc/resolv.conf", "/etc/hosts")
_LIMITS = ("NOFILE", "MEMLOCK", "STACK", "NPROC", "CORE")


class Limit(NamedTuple):
    """A resource limit: ``name`` as in setrlimit(2), ``RLIMIT_NOFILE``; unlimited is 2^64 - 1."""

    name: str
    soft: int
    hard: int


def host_files() -> tuple[tuple[str, str], ...]:
    """Where the container sees a file of the host, and which that is."""
    found = [(name, os.path.realpath(name)) for name in _FILES]
    return tuple((name, file) for name, file in found if os.path.isfile(file))  # noqa: PTH113 - strings


def host_limits() -> tuple[Limit, ...]:
    """Our own limits, which a container may keep: runtimes refuse those above the host's."""
    found = []
    for name in _LIMITS:
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        found.append(Limit(f"RLIMIT_{name}", _unsigned(soft), _unsigned(hard)))
    return tuple(found)


def _unsigned(value: int) -> int:
    """RLIM_INFINITY is -1 here and 2^64 - 1 in the runtime-spec's unsigned JSON."""
    return value % (1 << 64)


def specifications(directories: Sequence[Path] = CDI_DIRECTORIES) -> list[tuple[str, int, int]]:
    """The files in which the host describes its devices: path, size, time of the last change."""
    found = []
    for directory in directories:
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                of = entry.stat()
                found.append((entry.path, of.st_size, of.st_mtime_ns))
    return sorted(found)
