"""Manifests, indexes, configs and traces that this node has read before, by digest: an image whose layers are here
starts although its registry is away, and one that is started often asks its registry for nothing twice.

    FOLDER/<hex of the sha256>     the document; it counts only if it has that digest

Only what is pinned by a digest is found: what a tag names is its registry's to say.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from envbuilder.digest import Descriptor, Digest, InvalidJson, parse_json_object
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.store.files import write_whole

#: Bytes of a document that is kept: manifests of 127 layers and configs have some tens of thousands.
MAX_SIZE = 1 << 20
#: Documents that are kept; with one more the quarter that was used longest ago goes. An image has four or five.
MOST = 4096

#: Letters of a document's name; files that are being written have fewer.
_NAME = 64

_KEPT = media_types.MANIFESTS | media_types.INDEXES | media_types.CONFIGS | {media_types.TRACE}


class Documents:
    """The documents below ``folder``, which is made when there is one to keep. Two processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, digest: Digest) -> bytes | None:
        """The document ``digest``; None when it is not here, or not that any more."""
        file = self._folder / digest.hex
        try:
            if file.stat().st_size > MAX_SIZE:
                return None
            data = file.read_bytes()
            if Digest.of(data) != digest:
                return None
            os.utime(file)
        except OSError:
            return None
        return data

    def lookup(self, digest: Digest) -> Descriptor | None:
        """The manifest or index ``digest``; None as ``find``, and when it does not say itself what it is."""
        data = self.find(digest)
        if data is None:
            return None
        try:
            kind = parse_json_object(data, source=f"{self._folder}: {digest}").get("mediaType")
        except InvalidJson:
            return None
        if kind not in media_types.MANIFESTS | media_types.INDEXES:
            return None
        return Descriptor(media_type=kind, digest=digest, size=len(data))

    def keep(self, what: Descriptor, data: bytes) -> None:
        """Keep ``data``, verified to be ``what``, if it is a document; a disk that takes nothing is no error."""
        if what.media_type not in _KEPT or len(data) > MAX_SIZE:
            return
        with contextlib.suppress(OSError, EnvbuilderError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._folder, self._folder / what.digest.hex, data)
            self._thin()

    def _thin(self) -> None:
        with os.scandir(self._folder) as entries:
            kept = sorted((entry.stat().st_mtime_ns, entry.path) for entry in entries if len(entry.name) == _NAME)
        if len(kept) > MOST:
            for _, path in kept[: len(kept) // 4]:
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
