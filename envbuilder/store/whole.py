"""Content read whole: bounded before a byte is asked for, verified before one is used (registry.md, security)."""

from __future__ import annotations

from envbuilder.digest import Descriptor, verifying
from envbuilder.errors import EnvbuilderError
from envbuilder.store.target import Target


def fetch_whole(source: Target, what: Descriptor, most: int, refuse: type[EnvbuilderError]) -> bytes:
    """All bytes of ``what``, which are at most ``most``.

    Raises:
        refuse: it has more. NotFound, UnavailableError, DigestMismatch: from the source.
    """
    where = f"{source.name}: {what.digest}"
    if what.size > most:
        raise refuse(f"{where}: want at most {most} bytes, got {what.size}")
    with source.fetch(what) as stream:
        return verifying(stream, what, source=where).read()
