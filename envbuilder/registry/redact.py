"""What of a URL, a header or a server's words may stand in a message or a log."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, urlsplit

#: Query keys whose values are no secrets; presigned URLs and upload states have many others.
_HARMLESS = frozenset({"digest", "mount", "from", "n", "last", "service", "scope", "digest-algorithm", "tag"})
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "www-authenticate"})
_URL_HEADERS = frozenset({"location"})
# Said by what is not allowed: the range of what is takes 2 ms to compile, at the start of each job.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\xa0\U00010000-\U0010ffff]+")
_MAX_URL = 300
#: Of the secrets of this process that servers may repeat to us: so many, so long at least.
_MAX_SENT, _LEAST_SENT = 64, 8


class _Sent:
    """The newest secrets that were sent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.words: tuple[str, ...] = ()

    def add(self, words: Iterable[str]) -> None:
        # Short passwords would blot out ordinary words of our own, and be known by that.
        new = [word for word in words if len(word) >= _LEAST_SENT]
        with self._lock:
            self.words = (*(word for word in self.words if word not in new), *new)[-_MAX_SENT:]


_SENT = _Sent()


def note_sent(authorization: str = "", *more: str) -> None:
    """Remember the Authorization of a request, and ``more`` that went to a server: no message shows it from now on."""
    _SENT.add((*secrets_of(authorization), *more))


def redact_url(url: str) -> str:
    """``url`` without userinfo, fragment and the values of query keys that may be secrets."""
    try:
        parts = urlsplit(_hidden(url))
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return "(no URL)"
    if ":" in host:
        host = f"[{host}]"
    shown = [
        f"{quote(key)}={quote(text, safe=':/,')}" if key in _HARMLESS else f"{quote(key)}=..." for key, text in pairs
    ]
    front = f"{parts.scheme}://" if parts.scheme else ""
    return plain(front + host + port + parts.path + ("?" + "&".join(shown) if shown else ""), _MAX_URL)


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """``headers`` for a log."""

    def shown(name: str, text: str) -> str:
        if name.lower() in _SECRET_HEADERS:
            return "..."
        return redact_url(text) if name.lower() in _URL_HEADERS else plain(text, _MAX_URL)

    return {name: shown(name, text) for name, text in headers.items()}


def plain(text: str, limit: int) -> str:
    """``text`` of a server without secrets and control characters (they could rewrite a terminal), cut to ``limit``."""
    clean = _UNPRINTABLE.sub(" ", _hidden(text)).strip()
    return clean if len(clean) <= limit else clean[:limit] + "..."


def secrets_of(authorization: str) -> tuple[str, ...]:
    """What must not be shown of the Authorization that was sent: the word itself, and the password in a Basic one."""
    scheme, _, word = authorization.partition(" ")
    if scheme.lower() != "basic":
        return (word,)
    name, _, password = base64.b64decode(word).decode("utf-8", "replace").partition(":")
    return (word, password, f"{name}:{password}")


def without(text: str, secrets: Iterable[str]) -> str:
    """``text`` with each of ``secrets`` blotted out: servers echo what they were sent."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 3:  # shorter ones would blot out ordinary words
            for spelled in (secret, secret.rstrip("="), quote(secret, safe=""), secret.replace("/", "\\/")):
                text = text.replace(spelled, "...")
    return text


def _hidden(text: str) -> str:
    return without(text, _SENT.words)
