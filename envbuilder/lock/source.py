"""ArtifactSource: where a build gets the bytes that a lock names."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from envbuilder.lock.model import Artifact


class ArtifactSource(Protocol):
    """Verified files of artefacts."""

    def file(self, artifact: Artifact) -> Path:
        """A local file that was verified against ``artifact.digest`` and size; fetched if need be.

        Raises:
            DigestMismatch: the source gave other bytes. UnavailableError: it did not answer.
        """
