"""An OCI image layout in a tar file (``oci-archive:``): read in place, or written in one pass.

Source: OCI image-spec 1.1 image-layout.md; the form that skopeo and podman call oci-archive.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import stat
import tarfile
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from envbuilder.digest import BLOCK_SIZE, Descriptor, Digest, verifying
from envbuilder.errors import SpecError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, parse_document
from envbuilder.oci.reference import check_tag
from envbuilder.store.files import disk_errors, name_file, sync_directory
from envbuilder.store.layout import (
    INDEX_FILE,
    LAYOUT_BYTES,
    LAYOUT_FILE,
    MAX_INDEX_SIZE,
    NotALayout,
    check_layout_file,
    layout_index,
    named_in,
    parse_layout_index,
)
from envbuilder.store.target import NotFound, Opener, ShortRange
from envbuilder.store.tarscan import Extent, ExtentReader, scan

_WANTED = re.compile(r"oci-layout|index\.json|blobs/sha256/[0-9a-f]{64}")
_BLOBS = "blobs/sha256/"
_PAD = 512


class ReadOnlyTarget(SpecError):
    """An archive that is read cannot be written to as well."""


class _Extents:
    """Content at known places of one open file; what reading and writing an archive have in common."""

    def __init__(self, name: str, fd: int) -> None:
        self._name, self._fd = name, fd
        self._extents: dict[str, Extent] = {}
        weakref.finalize(self, os.close, fd)

    @property
    def name(self) -> str:
        return self._name

    def has(self, what: Descriptor) -> bool:
        extent = self._extents.get(_BLOBS + what.digest.hex)
        return extent is not None and extent.size == what.size

    def fetch(self, what: Descriptor) -> BinaryIO:
        extent = self._extent(what)
        return verifying(
            cast("BinaryIO", ExtentReader(self, self._fd, extent)), what, source=f"{self.name}: {what.digest}"
        )

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        extent = self._extent(what)
        if offset < 0 or offset + size > extent.size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, it has {extent.size}")
        data = os.pread(self._fd, size, extent.offset + offset)
        if len(data) != size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, got {len(data)}")
        return data

    def _extent(self, what: Descriptor) -> Extent:
        if not self.has(what):
            raise NotFound(f"{self.name}: no {what.digest} of {what.size} bytes")
        return self._extents[_BLOBS + what.digest.hex]

    def _manifest(self, digest: Digest) -> Descriptor:
        extent = self._extents.get(_BLOBS + digest.hex)
        if extent is None or extent.size > MAX_MANIFEST_SIZE:
            raise NotFound(f"{self.name}: no manifest {digest}")
        what = Descriptor(media_type=media_types.OCI_MANIFEST, digest=digest, size=extent.size)
        with self.fetch(what) as stream:
            document = parse_document(stream.read(), source=f"{self.name}: {digest}")
        return replace(what, media_type=document.media_type)


class ArchiveTarget(_Extents):
    """The image layout in the tar ``file``: a Target and RangeTarget that is read only. Thread-safe.

    Raises:
        NotALayout, BadArchive: it holds none, or is no plain tar. HostError: it cannot be read.
    """

    def __init__(self, file: Path) -> None:
        name = f"oci-archive:{file}"
        try:
            # O_NONBLOCK: a FIFO must not hang the open.
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise NotALayout(f"{name}: no such file") from error
        except OSError:
            with disk_errors(file):
                raise
        super().__init__(name, fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NotALayout(f"{name}: want a tar, got something that is no file", hint="Write oci:DIR for a folder.")
        self._extents = scan(fd, _WANTED, source=name)
        check_layout_file(self._small(LAYOUT_FILE, BLOCK_SIZE), source=name)
        self._entries = parse_layout_index(self._small(INDEX_FILE, MAX_INDEX_SIZE), source=name)

    def lookup(self, tag: str) -> Descriptor:
        if tag.startswith("sha256:"):
            return self._manifest(Digest.parse(tag))
        return named_in(self._entries, tag, source=self.name)

    def push(self, what: Descriptor, content: Opener) -> None:
        del content
        raise ReadOnlyTarget(f"{self.name}: cannot add {what.digest}", hint="Write another archive.")

    def tag(self, what: Descriptor, tag: str) -> None:
        raise ReadOnlyTarget(f"{self.name}: cannot tag {what.digest} as {tag}", hint="Write another archive.")

    def _small(self, name: str, limit: int) -> bytes:
        extent = self._extents.get(name)
        if extent is None or extent.size > limit:
            raise NotALayout(f"{self.name}: want an OCI image layout, got no {name} of at most {limit} bytes")
        return os.pread(self._fd, extent.size, extent.offset)


class ArchiveWriter(_Extents):
    """A new archive at ``file``, written in the order of pushes; it appears, whole, with ``finish``.

    A SerialTarget: an image is copied into it, then it is finished. What is never finished leaves
    nothing behind, killed or not. Thread-safe; one blob at a time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._temporary = self._file.with_name(f".{self._file.name}.{secrets.token_hex(8)}")
        self._lock = threading.Lock()
        self._end = 0
        self._tags: dict[str, Descriptor] = {}
        self._has_name = False
        with disk_errors(self._file.parent):
            fd = self._open()
        super().__init__(f"oci-archive:{file}", fd)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            # Without a name until it is whole: a killed writer leaves nothing.
            return os.open(self._file.parent, flags | os.O_TMPFILE, 0o644)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
        fd = os.open(self._temporary, flags | os.O_CREAT | os.O_EXCL, 0o644)
        self._has_name = True
        weakref.finalize(self, self._temporary.unlink, missing_ok=True)
        return fd

    def push(self, what: Descriptor, content: Opener) -> None:
        with self._lock:
            if self.has(what):
                return
            start = self._end
            try:
                self._member(_BLOBS + what.digest.hex, what, content)
            except BaseException:
                os.ftruncate(self._fd, start)
                self._end = start
                raise

    def lookup(self, tag: str) -> Descriptor:
        if tag.startswith("sha256:"):
            return self._manifest(Digest.parse(tag))
        if tag not in self._tags:
            raise NotFound(f"{self.name}: no tag {tag!r}")
        return self._tags[tag]

    def tag(self, what: Descriptor, tag: str) -> None:
        check_tag(tag)
        self._extent(what)
        with self._lock:
            self._tags[tag] = what

    def finish(self, root: Descriptor) -> None:
        """Write the index, which names ``root`` (by its tags, or without one), and let the archive appear.

        Raises:
            HostError: the disk is full or read-only.
        """
        self._extent(root)
        named = [
            replace(what, annotations={**what.annotations, media_types.REF_NAME: tag})
            for tag, what in sorted(self._tags.items())
        ]
        if root.digest not in {what.digest for what in self._tags.values()}:
            named.append(root)
        with self._lock:
            self._small(LAYOUT_FILE, LAYOUT_BYTES)
            self._small(INDEX_FILE, layout_index(named))
            self._write(bytes(2 * _PAD))
            with disk_errors(self._file):
                os.fsync(self._fd)
                if not self._has_name:
                    name_file(self._fd, self._temporary)
                self._temporary.replace(self._file)
                sync_directory(self._file.parent)

    def _small(self, name: str, data: bytes) -> None:
        what = Descriptor(media_type="", digest=Digest.of(data), size=len(data))
        self._member(name, what, lambda: io.BytesIO(data))

    def _member(self, name: str, what: Descriptor, content: Opener) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = what.size, 0o644, 1
        self._write(member.tobuf(tarfile.PAX_FORMAT))
        offset = self._end
        with verifying(content(), what, source=f"{self.name}: {what.digest}") as stream:
            while block := stream.read(BLOCK_SIZE):
                self._write(block)
        self._write(bytes(-what.size % _PAD))
        self._extents[name] = Extent(offset, what.size)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        with disk_errors(self._file):
            while rest:
                count = os.pwrite(self._fd, rest, self._end)
                self._end += count
                rest = rest[count:]
