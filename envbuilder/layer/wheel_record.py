"""RECORD, the list of a wheel's files with their digests: parse what came, write what is installed.

Source: packaging.python.org, "Recording installed projects", "The RECORD file"; PEP 427, "Signed wheel files".
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envbuilder.digest import Digest
from envbuilder.errors import IntegrityError

#: "The hash algorithm must be sha256 or better; md5, sha1 and sha224 are not permitted" (PEP 427).
_DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}


class BadRecord(IntegrityError):
    """A wheel's RECORD is malformed, or the wheel's files are not those that it lists."""

    hint = (
        "Take another version or build number of the package; or name it in allow-records, if you trust the file as "
        "the lock has it: its files are then taken as they are. Tell the publisher."
    )


@dataclass(frozen=True, slots=True)
class Recorded:
    """What RECORD says of one file: algorithm, digest, and size or -1 where it names none."""

    algorithm: str
    digest: bytes
    size: int

    def matches(self, data: bytes) -> bool:
        """Whether ``data`` is the file that was recorded."""
        return hashlib.new(self.algorithm, data).digest() == self.digest


def parse_record(data: bytes, *, source: str) -> Mapping[str, Recorded]:
    """The rows of ``data`` that have a digest, by path as written.

    Raises:
        BadRecord: not UTF-8, not CSV, a weak or malformed digest, or two rows that differ for one path.
    """
    rows: dict[str, Recorded] = {}
    try:
        for row in csv.reader(io.StringIO(data.decode("utf-8"), newline="")):
            if not row or len(row) < 2 or not row[1]:
                continue
            path, digest, size = row[0], row[1], row[2] if len(row) > 2 else ""
            recorded = Recorded(*_digest(digest), int(size) if size else -1)
            if rows.setdefault(path, recorded) != recorded:
                raise BadRecord(f"{source}: RECORD: {path!r} is there twice and differs")
    except (ValueError, csv.Error, binascii.Error) as error:
        raise BadRecord(f"{source}: RECORD: {error}") from error
    return rows


def dump_record(files: Iterable[tuple[str, Digest, int] | tuple[str, None, None]]) -> bytes:
    """RECORD with one row for each ``(path, digest, size)``, sorted by path; no digest, an empty row."""
    lines = []
    for path, digest, size in sorted(files, key=lambda row: row[0].encode()):
        encoded = base64.urlsafe_b64encode(bytes.fromhex(digest.hex)).rstrip(b"=").decode() if digest else ""
        lines.append(f"{_quoted(path)},{f'sha256={encoded}' if digest else ''},{'' if size is None else size}\n")
    return "".join(lines).encode()


def _quoted(field: str) -> str:
    # By hand: csv.writer leaves a lone carriage return bare before Python 3.13, and layers must not tell hosts apart.
    return '"' + field.replace('"', '""') + '"' if any(character in field for character in ',"\r\n') else field


def _digest(text: str) -> tuple[str, bytes]:
    algorithm, _, encoded = text.partition("=")
    if algorithm not in _DIGEST_SIZES:
        raise ValueError(f"want a digest by {', '.join(_DIGEST_SIZES)}, got {text[:100]!r}")
    encoded = encoded.rstrip("=")
    digest = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    if len(digest) != _DIGEST_SIZES[algorithm]:
        raise ValueError(f"not a {algorithm} digest: {text[:100]!r}")
    return algorithm, digest
