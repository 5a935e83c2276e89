"""Resolution: which image exactly a job starts, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envbuilder.digest import Descriptor
from envbuilder.oci.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A reference pinned to one digest, with its start plan.

    asked: the reference as it was written. pinned: the same place by digest: the only handle afterwards.
    image: what the reference names (an index or a manifest). manifest: the plain image of the platform.
    lazy: the EROFS manifest, or None. start: ``lazy``, or ``full``: layers that are not on the node are pulled whole
        first; ``why`` says which and why.
    size: bytes of config and layers as stored. labels: of the image config.
    annotations: of the image, the lock's digest among them.
    """

    asked: str
    pinned: str
    platform: Platform
    image: Descriptor
    manifest: Descriptor
    lazy: Descriptor | None
    start: str
    layers: int
    size: int
    labels: dict[str, str]
    annotations: dict[str, str]
    why: str

    def to_json(self) -> dict[str, Any]:
        """The answer as JSON (docs/formats/resolution.md)."""
        return {
            "asked": self.asked,
            "pinned": self.pinned,
            "digest": str(self.image.digest),
            "mediaType": self.image.media_type,
            "platform": str(self.platform),
            "manifest": str(self.manifest.digest),
            "lazyManifest": str(self.lazy.digest) if self.lazy else None,
            "start": self.start,
            "why": self.why,
            "layers": self.layers,
            "size": self.size,
            "labels": self.labels,
            "annotations": self.annotations,
        }
