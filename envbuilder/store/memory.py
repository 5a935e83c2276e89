"""MemoryTarget: content in a dictionary, for tests and for documents that never touch a disk."""

from __future__ import annotations

import io
import threading
from typing import BinaryIO

from envbuilder.digest import Descriptor, Digest, DigestMismatch
from envbuilder.oci.manifest import parse_document
from envbuilder.oci.reference import check_tag
from envbuilder.store.referrers import Swapped, TagState
from envbuilder.store.target import NotFound, Opener, ShortRange


class MemoryTarget:
    """A Target and RangeTarget in memory; as large as its content, so not for layers of real size."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._content: dict[Digest, bytes] = {}
        self._tags: dict[str, Descriptor] = {}

    @property
    def name(self) -> str:
        return self._name

    def has(self, what: Descriptor) -> bool:
        return len(self._content.get(what.digest, b"")) == what.size and what.digest in self._content

    def fetch(self, what: Descriptor) -> BinaryIO:
        return io.BytesIO(self._get(what))

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        data = self._get(what)[offset : offset + size]
        if len(data) != size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, got {len(data)}")
        return data

    def push(self, what: Descriptor, content: Opener) -> None:
        if self.has(what):
            return
        with content() as stream:
            parts, size = [], 0
            while size <= what.size and (part := stream.read(what.size + 1 - size)):
                parts.append(part)
                size += len(part)
        data = b"".join(parts)
        if (len(data), Digest.of(data)) != (what.size, what.digest):
            raise DigestMismatch(self.name, what.digest, what.size, Digest.of(data), len(data))
        with self._lock:
            self._content[what.digest] = data

    def lookup(self, tag: str) -> Descriptor:
        if tag.startswith("sha256:"):
            digest = Digest.parse(tag)
            if digest not in self._content:
                raise NotFound(f"{self.name}: no manifest {digest}")
            data = self._content[digest]
            media_type = parse_document(data, source=f"{self.name}: {digest}").media_type
            return Descriptor(media_type=media_type, digest=digest, size=len(data))
        if tag not in self._tags:
            raise NotFound(f"{self.name}: no tag {tag!r}")
        return self._tags[tag]

    def tag(self, what: Descriptor, tag: str) -> None:
        check_tag(tag)
        self._get(what)
        with self._lock:
            self._tags[tag] = what

    def tag_state(self, tag: str) -> TagState | None:
        """What ``tag`` names; None: nothing."""
        with self._lock:
            what = self._tags.get(tag)
            return TagState(what=what, data=self._content[what.digest]) if what else None

    def swap_tag(self, tag: str, what: Descriptor, data: bytes, was: TagState | None) -> Swapped:
        """Store the manifest ``data`` as ``tag`` if that still names ``was``."""
        with self._lock:
            if self._tags.get(tag) != (was.what if was else None):
                return "lost"
            self._content[what.digest] = data
            self._tags[tag] = what
        return "done"

    def _get(self, what: Descriptor) -> bytes:
        if not self.has(what):
            raise NotFound(f"{self.name}: no {what.digest}")
        return self._content[what.digest]
