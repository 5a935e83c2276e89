"""Layers of others whose manifest says that they have a table of contents: eStargz and zstd:chunked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envbuilder.digest import Descriptor
from envbuilder.oci import media_types


def has_table(layer: Descriptor) -> bool:
    """Whether the manifest says that ``layer`` has a table of contents that we read, so that ranges of it suffice."""
    notes = layer.annotations
    return media_types.STARGZ_TOC_DIGEST in notes or chunked_notes(notes) is not None


def have_tables(layers: Sequence[Descriptor]) -> bool:
    """Whether an image of these layers starts without that any is pulled whole."""
    return bool(layers) and all(map(has_table, layers))


def chunked_notes(notes: Mapping[str, str]) -> tuple[str, str] | None:
    """Digest and place of a zstd:chunked layer's table, as its annotations ``notes`` say them; None: it has none."""
    for prefix in media_types.ZSTD_CHUNKED:
        if prefix + ".manifest-checksum" in notes and prefix + ".manifest-position" in notes:
            return notes[prefix + ".manifest-checksum"], notes[prefix + ".manifest-position"]
    return None
