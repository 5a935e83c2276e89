"""Which wheels fit an image: its interpreter, machine and C library, never the host's. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envbuilder.lock.model import Interpreter
from envbuilder.oci.platform import Platform

#: PEP 600: old names of three glibc versions.
_LEGACY = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
#: Oldest glibc minor that any manylinux wheel of the machine can name (PEP 513, PEP 599).
_OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}


class Fit(NamedTuple):
    """How well a wheel fits; the smallest is the best. A higher build number wins among equals (PEP 427)."""

    rank: int
    build: tuple[int, str]
    file: str


def glibc_minor(glibc: str) -> int:
    """The minor of a glibc version such as ``2.41``."""
    return int(glibc.split(".")[1])


def supported_tags(python: Interpreter, platform: Platform, glibc: str) -> tuple[Tag, ...]:
    """Every wheel tag that runs on the image, best first (packaging's order, as pip's)."""
    platforms = []
    for minor in range(glibc_minor(glibc), _OLDEST_MINOR[platform.machine] - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{platform.machine}")
        if legacy := _LEGACY.get((2, minor)):
            platforms.append(f"{legacy}_{platform.machine}")
    platforms.append(f"linux_{platform.machine}")
    major, minor = (int(part) for part in python.version.split("."))
    native = cpython_tags((major, minor), abis=[python.tag], platforms=platforms)
    return (*native, *compatible_tags((major, minor), interpreter=python.tag, platforms=platforms))


@cache
def _ranks(tags: tuple[Tag, ...]) -> Mapping[Tag, int]:
    return {tag: at for at, tag in enumerate(reversed(tags))}


def best_wheel(files: Iterable[str], tags: tuple[Tag, ...]) -> str | None:
    """The one of the wheel ``files`` that fits best; None if none fits."""
    ranks = _ranks(tags)
    fits = []
    for file in files:
        try:
            _, _, build, file_tags = parse_wheel_filename(file)
        except InvalidWheelFilename:
            continue
        if rank := max((ranks[tag] + 1 for tag in file_tags if tag in ranks), default=0):
            fits.append(Fit(rank, build or (-1, ""), file))
    return max(fits).file if fits else None
