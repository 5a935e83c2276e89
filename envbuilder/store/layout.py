"""LayoutTarget: an OCI image layout directory, the store that envbuilder brings along.

Source: OCI image-spec 1.1 image-layout.md. Tags are ``org.opencontainers.image.ref.name``
annotations in index.json, as skopeo and umoci write them. Beside the layout's own files
there is one directory, ``envbuilder/``, that other tools ignore: what is being written
(``incoming/``), the lock of index.json, and our records.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from envbuilder.digest import (
    BLOCK_SIZE,
    Descriptor,
    Digest,
    DigestMismatch,
    VerifyingReader,
    canonical_json,
    parse_json_object,
    verifying,
)
from envbuilder.errors import SpecError
from envbuilder.oci import media_types
from envbuilder.oci.artifact import as_referrer, subject_of_tag
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, parse_document
from envbuilder.oci.reference import check_tag
from envbuilder.store.files import (
    BlobWriter,
    PendingFile,
    disk_errors,
    exclusive,
    remove_leftovers,
    write_whole,
)
from envbuilder.store.records import RecordStore
from envbuilder.store.referrers import Listing, Swapped, TagState
from envbuilder.store.target import NotFound, Opener, ShortRange, Span

LAYOUT_FILE = "oci-layout"
INDEX_FILE = "index.json"
LAYOUT_BYTES = b'{"imageLayoutVersion":"1.0.0"}'
#: Bytes an index.json may have: every tag of a store costs some 250.
MAX_INDEX_SIZE = 64 << 20
#: Bytes of a file that are sent without a look at what else goes on.
_SPAN_SIZE = 2 << 20
#: Seconds after which a blob that is asked for is marked as used again; far below gc's grace age.
_RENEW_S = 3600.0
#: What a creation that was killed may have left: such a directory may become a layout again.
_OWN_NAMES = {LAYOUT_FILE, INDEX_FILE, "blobs", "envbuilder"}


class NotALayout(SpecError):
    """A directory or archive that should be an OCI image layout is not."""


class LayoutTarget:
    """The image layout in ``directory``; a Target and a RangeTarget. Safe across threads and processes.

    With ``create`` the directory and the layout are made when missing. Opening removes what
    killed writers left.

    Raises:
        NotALayout: there is none and ``create`` is False, or the directory holds other things.
        HostError: the disk is full or read-only.
    """

    def __init__(self, directory: Path, *, create: bool = False) -> None:
        self._directory = directory.absolute()
        self._blobs = self._directory / "blobs" / "sha256"
        self._own = self._directory / "envbuilder"
        self._incoming = self._own / "incoming"
        self._records = RecordStore(self._own / "records")
        if create and not (directory / LAYOUT_FILE).exists():
            self._create()
        self._check()
        remove_leftovers(self._incoming)

    @property
    def name(self) -> str:
        return f"oci:{self._directory}"

    @property
    def directory(self) -> Path:
        """Where the layout is, absolute."""
        return self._directory

    def has(self, what: Descriptor) -> bool:
        path = self._file(what.digest)
        try:
            found = path.stat()
            if time.time() - found.st_mtime > _RENEW_S and os.access(path, os.W_OK):
                # Who asks may rely on the answer: a collection (gc.py) leaves alone what was asked for lately.
                os.utime(path)
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == what.size

    def fetch(self, what: Descriptor) -> BinaryIO:
        return cast("BinaryIO", _StoredReader(os.fdopen(self._open(what.digest), "rb", buffering=0), what, self.name))

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        fd = self._open(what.digest)
        try:
            with disk_errors(self._file(what.digest)):
                data = os.pread(fd, size, offset)
        finally:
            os.close(fd)
        if len(data) != size:
            raise ShortRange(f"{self.name}: {what.digest}: want {size} bytes at {offset}, got {len(data)}")
        return data

    def file_of(self, what: Descriptor) -> Path:
        """The file that holds ``what``: whole, verified when it was stored, never to be changed.

        Raises:
            NotFound: it is not here.
        """
        if not self.has(what):
            raise NotFound(f"{self.name}: no {what.digest} of {what.size} bytes")
        return self._file(what.digest)

    def push(self, what: Descriptor, content: Opener) -> None:
        if self.has(what):
            return
        stream = verifying(content(), what, source=f"{self.name}: {what.digest}")
        # A large blob passes the page cache (decision 0008): memory that it gets anew costs more than the hashing.
        size = what.size if what.size >= BLOCK_SIZE else 0
        with stream, self._pending(size) as pending:
            pending.write_all_of(stream)
            pending.publish(self._file(what.digest))

    def clear_away(self) -> bool:
        """Remove what killed writers left; whether nobody is writing."""
        remove_leftovers(self._incoming)
        return not self._incoming.is_dir() or not any(self._incoming.iterdir())

    def begin(self) -> BlobWriter:
        """A writer for content whose digest is not known yet; nothing is visible before its ``commit``."""
        return BlobWriter(self._pending(), self._blobs, self.name)

    @property
    def records(self) -> RecordStore:
        """What was learned about the content of this layout, beside it."""
        return self._records

    def lookup(self, tag: str) -> Descriptor:
        """What ``tag`` names: a tag, a digest, or "" for the only image of the layout.

        Raises:
            NotFound: no such tag; or "" and there are none or several images.
        """
        if tag.startswith("sha256:"):
            return self._manifest(Digest.parse(tag))
        return named_in(self._entries(), tag, source=self.name)

    def tag(self, what: Descriptor, tag: str) -> None:
        check_tag(tag)
        if not self.has(what):
            raise NotFound(f"{self.name}: no {what.digest} to tag as {tag}")
        named = replace(what, annotations={**what.annotations, media_types.REF_NAME: tag})
        with exclusive(self._lock()):
            kept = [entry for entry in self._entries() if entry.annotations.get(media_types.REF_NAME) != tag]
            self._write_index([*kept, named])

    def tag_state(self, tag: str) -> TagState | None:
        """What ``tag`` names; None: nothing."""
        try:
            what = self.lookup(check_tag(tag))
        except NotFound:
            return None
        with self.fetch(what) as stream:
            return TagState(what=what, data=stream.read())

    def swap_tag(self, tag: str, what: Descriptor, data: bytes, was: TagState | None) -> Swapped:
        """Store the manifest ``data`` as ``tag`` if that still names ``was``."""
        self.push(what, lambda: io.BytesIO(data))
        named = replace(what, annotations={**what.annotations, media_types.REF_NAME: check_tag(tag)})
        with exclusive(self._lock()):
            entries = self._entries()
            now = {entry.digest for entry in entries if entry.annotations.get(media_types.REF_NAME) == tag}
            if now != ({was.what.digest} if was else set()):
                return "lost"
            kept = [entry for entry in entries if entry.annotations.get(media_types.REF_NAME) != tag]
            self._write_index([*kept, named])
        return "done"

    def listed_referrers(self, subject: Descriptor, artifact_type: str) -> Listing:
        """Those among the untagged manifests of index.json, where oras lists what it attached."""
        found = []
        for entry in self._entries():
            if media_types.REF_NAME in entry.annotations or artifact_type not in ("", entry.artifact_type):
                continue
            if entry.size <= MAX_MANIFEST_SIZE and self.has(entry):
                with self.fetch(entry) as stream:
                    referrer = as_referrer(data := stream.read(), source=f"{self.name}: {entry.digest}")
                named = parse_document(data, source=self.name).subject
                if named and named.digest == subject.digest:
                    found.append(referrer)
        return Listing(found=tuple(found), complete=False)

    def untag(self, tag: str) -> None:
        """Let ``tag`` name nothing; a no-op when it does not. The content stays."""
        with exclusive(self._lock()):
            entries = self._entries()
            kept = [entry for entry in entries if entry.annotations.get(media_types.REF_NAME) != tag]
            if len(kept) < len(entries):
                self._write_index(kept)

    def tags(self) -> Mapping[str, Descriptor]:
        """Every tag and what it names."""
        return {
            entry.annotations[media_types.REF_NAME]: _plain(entry)
            for entry in self._entries()
            if media_types.REF_NAME in entry.annotations
        }

    def entries(self) -> tuple[Descriptor, ...]:
        """Everything that index.json names, tagged or not."""
        return self._entries()

    @staticmethod
    def tag_of(entry: Descriptor) -> str:
        """The tag of an entry of index.json, or ""."""
        return entry.annotations.get(media_types.REF_NAME, "")

    @property
    def lock_file(self) -> Path:
        """What every writer of index.json holds (``exclusive``)."""
        return self._lock()

    def _create(self) -> None:
        with disk_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            if strange := sorted({path.name for path in self._directory.iterdir()} - _OWN_NAMES):
                raise NotALayout(
                    f"{self.name}: want an image layout or an empty directory, got one that holds {strange[0]!r}",
                    hint="Name another directory.",
                )
            self._blobs.mkdir(parents=True, exist_ok=True)
        with exclusive(self._lock()):
            if not (self._directory / INDEX_FILE).exists():
                self._write_index([])
            # Last: a directory without this file is no layout yet, whenever we are killed.
            write_whole(self._incoming, self._directory / LAYOUT_FILE, LAYOUT_BYTES)

    def _check(self) -> None:
        try:
            with (self._directory / LAYOUT_FILE).open("rb") as file:
                check_layout_file(file.read(BLOCK_SIZE), source=self.name)
        except OSError as error:
            raise NotALayout(
                f"{self.name}: want an OCI image layout, got none: {error.strerror}",
                hint="Name a directory with an oci-layout file in it.",
            ) from error

    def _file(self, digest: Digest) -> Path:
        return self._blobs / digest.hex

    def _open(self, digest: Digest) -> int:
        path = self._file(digest)
        try:
            # O_NONBLOCK: a FIFO in a layout that someone sent us must not hang the open.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise NotFound(f"{self.name}: no {digest}") from error
        except OSError:
            with disk_errors(path):
                raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotFound(f"{self.name}: {digest} is not a file")
        return fd

    def _manifest(self, digest: Digest) -> Descriptor:
        entries = self._entries()
        for entry in entries:
            if entry.digest == digest:
                return _plain(entry)
        try:
            size = self._file(digest).stat().st_size
        except OSError as error:
            raise NotFound(f"{self.name}: no manifest {digest}") from error
        if size > MAX_MANIFEST_SIZE:
            raise NotFound(f"{self.name}: {digest} has {size} bytes: a layer, not a manifest")
        what = Descriptor(media_type=media_types.OCI_MANIFEST, digest=digest, size=size)
        with self.fetch(what) as stream:
            document = parse_document(stream.read(), source=f"{self.name}: {digest}")
        return replace(what, media_type=document.media_type)

    def _entries(self) -> tuple[Descriptor, ...]:
        path = self._directory / INDEX_FILE
        with disk_errors(path), path.open("rb") as file:
            data = file.read(MAX_INDEX_SIZE + 1)
        return parse_layout_index(data, source=self.name)

    def _write_index(self, entries: list[Descriptor]) -> None:
        write_whole(self._incoming_made(), self._directory / INDEX_FILE, layout_index(entries))

    def _pending(self, size: int = 0) -> PendingFile:
        return PendingFile(self._incoming_made(), passing=size)

    def _incoming_made(self) -> Path:
        with disk_errors(self._directory):
            self._blobs.mkdir(parents=True, exist_ok=True)
            self._incoming.mkdir(parents=True, exist_ok=True)
        return self._incoming

    def _lock(self) -> Path:
        self._incoming_made()
        return self._own / "index.lock"


class _StoredReader(VerifyingReader):
    """A verified stream of a stored file: a FileStream."""

    def __init__(self, file: BinaryIO, what: Descriptor, name: str) -> None:
        super().__init__(file, what.digest, what.size, source=f"{name}: {what.digest}")
        self._file, self._what, self._name = file, what, name

    def spans(self, offset: int, size: int) -> Iterator[Span]:
        end = offset + size
        while offset < end:
            if (length := os.fstat(self._file.fileno()).st_size) != self._what.size:
                raise DigestMismatch(self._name, self._what.digest, self._what.size, None, length)
            yield Span(file=self._file, offset=offset, size=min(_SPAN_SIZE, end - offset))
            offset += _SPAN_SIZE


def _plain(entry: Descriptor) -> Descriptor:
    """``entry`` without its tag: a tag belongs to the layout, not to what it names."""
    annotations = {name: text for name, text in entry.annotations.items() if name != media_types.REF_NAME}
    return replace(entry, annotations=annotations)


def named_in(entries: Sequence[Descriptor], tag: str, *, source: str) -> Descriptor:
    """What ``tag`` names among the ``entries`` of an index.json; "" names the only image.

    Raises:
        NotFound: no such tag; or "" and there are none or several images.
    """
    images = {
        entry.digest: entry for entry in entries if not subject_of_tag(entry.annotations.get(media_types.REF_NAME, ""))
    }
    if not tag and len(images) == 1:
        return _plain(next(iter(images.values())))
    for entry in entries:
        if tag and entry.annotations.get(media_types.REF_NAME) == tag:
            return _plain(entry)
    named = {entry.annotations.get(media_types.REF_NAME, "") for entry in entries} - {""}
    tags = sorted(name for name in named if not subject_of_tag(name))
    wanted = f"tag {tag!r}" if tag else "single image"
    raise NotFound(
        f"{source}: want a {wanted}, got tags: {', '.join(tags)[:500] or 'none'}", hint="Name one of the tags."
    )


def check_layout_file(data: bytes, *, source: str) -> None:
    """Check the bytes of an ``oci-layout`` file.

    Raises:
        NotALayout: another version than 1.0.0, or no JSON.
    """
    version = parse_json_object(data, source=f"{source}: {LAYOUT_FILE}").get("imageLayoutVersion")
    if version != "1.0.0":
        raise NotALayout(f"{source}: want imageLayoutVersion 1.0.0, got {str(version)[:100]!r}")


def layout_index(entries: list[Descriptor]) -> bytes:
    """The bytes of an ``index.json``."""
    value: dict[str, Any] = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX}
    return canonical_json({**value, "manifests": [entry.to_json() for entry in entries]})


def parse_layout_index(data: bytes, *, source: str) -> tuple[Descriptor, ...]:
    """What an ``index.json`` lists.

    Raises:
        InvalidJson, InvalidDigest, NotALayout: it is none.
    """
    if len(data) > MAX_INDEX_SIZE:
        raise NotALayout(f"{source}: {INDEX_FILE}: want at most {MAX_INDEX_SIZE} bytes")
    value = parse_json_object(data, source=f"{source}: {INDEX_FILE}")
    manifests = value.get("manifests")
    if not isinstance(manifests, list):
        raise NotALayout(f"{source}: {INDEX_FILE}: manifests: want a list")
    return tuple(Descriptor.from_json(item) for item in manifests)
