"""How bytes are named and checked: digests, descriptors, verified reading, canonical JSON."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol, cast

from envbuilder.errors import IntegrityError

#: OCI image-spec descriptor.md, "Digests": we accept and make sha256 only.
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
#: A part of a pair of escapes, or half a character (RFC 8259, 7).
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
#: OCI image-spec descriptor.md, "size": an int64.
_MAX_SIZE = (1 << 63) - 1
#: Bytes moved per read; 1 MiB keeps hashing at full speed (registry.md 13.2).
BLOCK_SIZE = 1 << 20


class InvalidDigest(IntegrityError):
    """A string that should name bytes is not ``sha256:`` and 64 lower-case hex digits."""


class InvalidJson(IntegrityError):
    """A JSON document is malformed, has a duplicate key or is not the type it should be."""


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A sha256, valid by construction, so it may become a path or part of a URL."""

    text: str

    def __post_init__(self) -> None:
        if not _DIGEST.match(self.text):
            raise InvalidDigest(f"digest: want sha256:<64 hex digits>, got {self.text[:100]!r}")

    @classmethod
    def parse(cls, text: object) -> Digest:
        """The digest written in ``text``.

        Raises:
            InvalidDigest: ``text`` is not one.
        """
        return cls(text if isinstance(text, str) else repr(text))

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Digest:
        """The digest of ``data``."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest())

    @property
    def hex(self) -> str:
        """The 64 hex digits."""
        return self.text[7:]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """What OCI calls a descriptor: media type, digest and size in bytes of some content.

    Source: OCI image-spec 1.1 descriptor.md. ``platform`` is the JSON object as it stands.
    """

    media_type: str
    digest: Digest
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    platform: Mapping[str, Any] | None = field(default=None, hash=False)
    artifact_type: str = ""

    def to_json(self) -> dict[str, Any]:
        """The descriptor as a JSON object; empty optional fields are left out."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        if self.platform is not None:
            value["platform"] = dict(self.platform)
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        return value

    @classmethod
    def from_json(cls, value: object) -> Descriptor:
        """The descriptor in a parsed JSON ``value``.

        Raises:
            InvalidJson, InvalidDigest: a field is missing or of another type.
        """
        if not isinstance(value, dict):
            raise InvalidJson(f"descriptor: want an object, got {type(value).__name__}")
        media_type, size = value.get("mediaType"), value.get("size")
        annotations, platform = value.get("annotations") or {}, value.get("platform")
        artifact_type = value.get("artifactType", "")
        if not isinstance(media_type, str) or not isinstance(artifact_type, str):
            raise InvalidJson("descriptor: want a mediaType that is a string")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MAX_SIZE:
            raise InvalidJson(f"descriptor: want a size from 0 to {_MAX_SIZE} bytes, got {str(size)[:40]}")
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise InvalidJson("descriptor: want annotations that are strings")
        if platform is not None and not isinstance(platform, dict):
            raise InvalidJson("descriptor: want a platform that is an object")
        return cls(
            media_type=media_type,
            digest=Digest.parse(value.get("digest")),
            size=size,
            annotations=annotations,
            platform=platform,
            artifact_type=artifact_type,
        )


def describe(data: bytes, media_type: str = "application/octet-stream", **fields: Any) -> Descriptor:
    """The descriptor of ``data``."""
    return Descriptor(media_type=media_type, digest=Digest.of(data), size=len(data), **fields)


class DigestMismatch(IntegrityError):
    """A stream ended and its size or sha256 differs from its descriptor."""

    def __init__(self, source: str, want_digest: Digest, want_size: int, got: Digest | None, got_size: int) -> None:
        what = f"{got} ({got_size} bytes)" if got else f"{got_size} bytes or more"
        super().__init__(
            f"{source}: want {want_digest} ({want_size} bytes), got {what}",
            hint="Fetch it again; if it stays wrong, the source is corrupt or hostile.",
        )
        self.want_digest, self.want_size, self.got, self.got_size = want_digest, want_size, got, got_size


class Readable(Protocol):
    """Anything with ``read``: all that a consumer of a byte stream may assume."""

    def read(self, size: int = -1, /) -> bytes: ...


def read_into(stream: Readable, room: memoryview) -> int:
    """Fill ``room`` from ``stream`` as one read would, straight where it can; how many bytes it got."""
    if hasattr(stream, "readinto"):
        return cast("int", stream.readinto(room))
    data = stream.read(len(room))
    room[: len(data)] = data
    return len(data)


class VerifyingReader(io.RawIOBase):
    """Pass bytes through and raise as soon as they cannot be exactly ``digest`` and ``size``.

    The last byte is withheld until the digest matches, so a caller that got ``size`` bytes has verified bytes; what
    was read into a caller's own buffer may be others once that has raised. At most ``size + 1`` bytes are read from
    ``inner``: a hostile source cannot make the caller buffer more. ``close`` closes ``inner``.

    Raises:
        DigestMismatch: from ``read``, on a short, long or altered stream.
    """

    def __init__(self, inner: BinaryIO, digest: Digest, size: int, *, source: str) -> None:
        super().__init__()
        self._inner, self._digest, self._size, self._source = inner, digest, size, source
        self._hash = hashlib.sha256()
        self._read = 0
        self._held = b""
        self._done = False

    @property
    def promise(self) -> tuple[Digest, int]:
        """What the bytes will be, once they are all read."""
        return self._digest, self._size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer).cast("B")
        if self._held or self._done:
            data, self._held = self._held[: len(room)], self._held[len(room) :]
            room[: len(data)] = data
            return len(data)
        if not room:
            return 0
        room = room[: self._size - self._read]
        got = read_into(self._inner, room) if room else 0
        self._took(room[:got])
        return got

    def read(self, size: int = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        if size == 0:
            return b""
        if not self._done and not self._held:
            self._fill(max(size, 1))
        data, self._held = self._held[:size], self._held[size:]
        return data

    def readall(self) -> bytes:
        parts = []
        while part := self.read(BLOCK_SIZE):
            parts.append(part)
        return b"".join(parts)

    def _fill(self, size: int) -> None:
        block = self._inner.read(min(size, self._size - self._read)) if self._read < self._size else b""
        self._took(block)
        self._held = block

    def _took(self, block: bytes | memoryview) -> None:
        """Hash what was read; compare at the end."""
        if not block and self._read < self._size:
            self._fail()
        self._hash.update(block)
        self._read += len(block)
        if self._read == self._size:
            if extra := self._inner.read(1):
                raise DigestMismatch(self._source, self._digest, self._size, None, self._size + len(extra))
            if self._hash.hexdigest() != self._digest.hex:
                self._fail()
            self._done = True

    def _fail(self) -> None:
        got = Digest("sha256:" + self._hash.hexdigest())
        raise DigestMismatch(self._source, self._digest, self._size, got, self._read)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
        super().close()


def verifying(inner: BinaryIO, what: Descriptor, *, source: str) -> BinaryIO:
    """``inner`` verified against ``what``; a stream that promises just that is not hashed twice.

    A wrapper of a VerifyingReader that passes its bytes on unchanged may hand on its ``promise``.
    """
    if getattr(inner, "promise", None) == (what.digest, what.size):
        return inner
    return cast("BinaryIO", VerifyingReader(inner, what.digest, what.size, source=source))


def canonical_json(value: object) -> bytes:
    """``value`` as JSON with sorted keys, no spaces, UTF-8: one byte string for one value.

    Source: OCI image-spec considerations.md, "Canonicalization".
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = min(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InvalidJson(f"JSON: duplicate key {twice[:100]!r}")
    return value


def _no_constants(text: str) -> float:
    raise InvalidJson(f"JSON: want a number, got {text}")


def parse_json_object(data: bytes, *, source: str, surrogates: bool = False) -> dict[str, Any]:
    """The JSON object in ``data``, as I-JSON has it (RFC 7493): what parsers read in different ways is refused.

    surrogates: take lone ones, as they stand.

    Raises:
        InvalidJson: not UTF-8, not JSON, not an object, a key stands twice, NaN, or a lone surrogate.
    """
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
        if not surrogates and _HALF.search(data):
            # It could be neither written down again nor shown.
            json.dumps(value, ensure_ascii=False).encode()
    except InvalidJson as error:
        raise InvalidJson(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"{source}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidJson(f"{source}: want a JSON object, got {type(value).__name__}")
    return value
