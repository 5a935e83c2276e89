"""tar-split: what is left of a tar when its files' data are taken out, so that it can be put together again.

Source: vbatts/tar-split tar/storage (0.12): lines of JSON, of a segment of bytes or of a file with its CRC-64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

_FILE, _SEGMENT = 1, 2


class TarSplit:
    """The entries of one tar, added in order."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self.size = 0

    def segment(self, data: bytes) -> None:
        """Bytes that are no file's."""
        if data:
            self._add({"type": _SEGMENT, "payload": base64.b64encode(data).decode()})

    def file(self, name: str, size: int, checksum: int | None) -> None:
        """An entry of the tar; None: it has no data."""
        payload = None if checksum is None else base64.b64encode(checksum.to_bytes(8, "big")).decode()
        entry: dict[str, object] = {"type": _FILE, "name": name}
        if size:
            entry["size"] = size
        self._add({**entry, "payload": payload})

    def stored(self, compress: Callable[[bytes], bytes]) -> bytes:
        """All of it."""
        return compress(b"".join(self._lines))

    def _add(self, entry: dict[str, object]) -> None:
        line = json.dumps({**entry, "position": len(self._lines)}, separators=(",", ":"), ensure_ascii=False)
        self._lines.append(line.encode() + b"\n")
        self.size += len(self._lines[-1])
