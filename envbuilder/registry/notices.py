"""What a registry wants people to read: ``Warning: 299 - "text"``, shown once a text and never acted on.

Source: OCI distribution-spec 1.1, "Warnings"; RFC 7234, 5.5.
"""

from __future__ import annotations

import re
import threading

from envbuilder.registry.redact import plain

_WARNING = re.compile(r'299 +\S+ +"((?:[^"\\]|\\.)*)"')
_MAX_TEXT = 500
_MAX_HEADER = 16 << 10
#: Texts remembered; a registry that makes up more is not shown any more.
_MAX_KNOWN = 100


def parse_warnings(header: str) -> list[str]:
    """The texts of the warnings of code 299 in ``header``; other codes are about caches."""
    texts = [re.sub(r"\\(.)", r"\1", text) for text in _WARNING.findall(header[:_MAX_HEADER])]
    return [shown for text in texts if (shown := plain(text, _MAX_TEXT))]


class Notices:
    """Remembers what was shown. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def new(self, header: str) -> list[str]:
        """The texts in ``header`` that were never given before."""
        fresh = []
        for text in parse_warnings(header):
            with self._lock:
                if text not in self._known and len(self._known) < _MAX_KNOWN:
                    self._known.add(text)
                    fresh.append(text)
        return fresh
