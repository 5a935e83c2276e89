"""What a flavour's writer made of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuilder.digest import Descriptor, Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLayer:
    """A layer's blob as written: how a manifest names it, and what its bytes unpack to."""

    media_type: str
    digest: Digest
    size: int
    diff_id: Digest
    notes: Mapping[str, str] = field(hash=False)

    @property
    def descriptor(self) -> Descriptor:
        return Descriptor(media_type=self.media_type, digest=self.digest, size=self.size, annotations=self.notes)
