"""Start-up traces as ``envbuilder trace`` makes them, of reads that a test has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from envbuilder.image.inspect import OpenImage
from envbuilder.mount.mount import RECORDED_READ_AHEAD
from envbuilder.mount.startup.reads import recorded
from envbuilder.mount.startup.trace import Pages, Trace, merge, of_reads


def trace_of(image: OpenImage, ranges: Iterable[Pages], *, commands: Sequence[str] = ("read",)) -> Trace:
    """The trace of one run of ``image`` that read ``ranges``, without a bundle."""
    return Trace(
        image=image.descriptor.digest,
        devices=tuple(layer.digest for layer in image.manifest.layers),
        commands=tuple(commands),
        runs=1,
        read_ahead=RECORDED_READ_AHEAD,
        ranges=merge([ranges]),
    )


def trace_of_reads(image: OpenImage, reads: Path) -> Trace:
    """The same of what a mount noted in the file ``reads``."""
    return trace_of(image, of_reads(recorded(reads)))
