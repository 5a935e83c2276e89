"""Which trace of an image is the newest, and how it follows the image elsewhere: nothing here reads a trace.

Most images that are copied have none: what parses and lays out traces is not imported to find that out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envbuilder.digest import Descriptor
from envbuilder.oci import media_types
from envbuilder.oci.artifact import plain
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE
from envbuilder.store.referrers import attach_manifest, read_referrer, referrers
from envbuilder.store.target import Target
from envbuilder.store.whole import fetch_whole

if TYPE_CHECKING:
    from envbuilder.store.movement import Progress

#: Digits of a time or a size that are read.
MAX_DIGITS = 16


def newest_trace(source: Target, subject: Descriptor, *, at_once: bool = False) -> Descriptor | None:
    """The newest trace that is listed for the manifest ``subject``; ``at_once``: see ``referrers``."""
    found = referrers(source, subject, media_types.TRACE_ARTIFACT, at_once=at_once)
    return max(found, key=made_at, default=None)


def made_at(what: Descriptor) -> int:
    """When a trace was made as its list says, seconds since the epoch; 0: unknown."""
    text = what.annotations.get(media_types.TRACE_MADE, "")
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else 0


def copy_trace(source: Target, subject: Descriptor, target: Target, *, progress: Progress | None = None) -> int | None:
    """Let the newest trace of the manifest ``subject``, which ``target`` has too, follow it.

    Bytes moved; None when there is none.

    Raises:
        DigestMismatch, UnavailableError, ...: as any copy.
    """
    what = newest_trace(source, subject)
    if what is None:
        return None
    from envbuilder.mount.startup.trace import InvalidTrace  # noqa: PLC0415  see above
    from envbuilder.store.copy import copy  # noqa: PLC0415  copies are no part of a start

    read_referrer(source, what, subject)
    # As any copy: what the target remembers and no longer has is sent again.
    report = copy(source, plain(what), target, progress=progress, finish=False)
    attach_manifest(target, subject, fetch_whole(source, what, MAX_MANIFEST_SIZE, InvalidTrace))
    return report.copied_bytes
