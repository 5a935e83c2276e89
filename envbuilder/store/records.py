"""RecordStore: what was learned once under a key, such as the layer that a plan key became.

One zstd file a record, with its checksum: a record that is torn, damaged or of another
format is absent, and the caller does its work again. Never a promise, always a shortcut.
"""

from __future__ import annotations

import re
from pathlib import Path

from envbuilder.errors import SpecError
from envbuilder.store.files import disk_errors, remove_leftovers, write_whole

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}\Z")
#: Bytes of a record when uncompressed: the paths of a layer of a million files are some 100 MB.
MAX_RECORD_SIZE = 512 << 20
_SUFFIX = ".json.zst"


class RecordStore:
    """Records in ``directory``, which is made on the first ``put``. Safe across threads and processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._incoming = self._directory / "incoming"
        remove_leftovers(self._incoming)

    @property
    def directory(self) -> Path:
        """Where they are, absolute."""
        return self._directory

    def get(self, key: str) -> bytes | None:
        """What ``put`` stored under ``key``; None if it did not, or if the file is damaged."""
        try:
            packed = self._file(key).read_bytes()
        except OSError:
            return None
        import zstandard  # noqa: PLC0415  who finds nothing, and puts nothing, starts without

        try:
            size = zstandard.frame_content_size(packed)
            if not 0 <= size <= MAX_RECORD_SIZE:
                return None
            return zstandard.ZstdDecompressor().decompress(packed)
        except zstandard.ZstdError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` under ``key``, in place of what was there.

        Raises:
            HostError: the disk is full or read-only.
        """
        import zstandard  # noqa: PLC0415  see above

        packed = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress(data)
        with disk_errors(self._directory):
            self._incoming.mkdir(parents=True, exist_ok=True)
        write_whole(self._incoming, self._file(key), packed)

    def remove(self, key: str) -> None:
        """Forget the record of ``key``; a no-op when there is none."""
        with disk_errors(self._directory):
            self._file(key).unlink(missing_ok=True)

    def keys(self) -> tuple[str, ...]:
        """The key of every record, sorted."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError:
            return ()
        return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))

    def _file(self, key: str) -> Path:
        if not _KEY.match(key):
            raise SpecError(f"record: want a key of a-z, 0-9, '.', '_' and '-', got {key[:100]!r}")
        return self._directory / (key + _SUFFIX)
