"""One project's page of a Python index: file names to addresses and digests (PEP 503, PEP 691). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from envbuilder.errors import IntegrityError

#: What we ask an index for: JSON, else the old page (PEP 691, "Version + Format Selection").
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class BadIndexPage(IntegrityError):
    """What an index answered is no project page."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a project: its address, and the sha256 that the index promises, or ""."""

    url: str
    sha256: str


def parse_page(data: bytes, content_type: str, url: str) -> dict[str, IndexFile]:
    """The files of the page ``data`` that stood at ``url``, by name.

    Raises:
        BadIndexPage: neither form of a project page.
    """
    if "json" in content_type:
        return _json(data, url)
    parser = _Anchors()
    parser.feed(data.decode(errors="replace"))
    files = {}
    for href in parser.hrefs:
        address, fragment = urldefrag(urljoin(url, href))
        sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        files[unquote(urlsplit(address).path.rpartition("/")[2])] = IndexFile(address, sha256)
    return files


def _json(data: bytes, url: str) -> dict[str, IndexFile]:
    try:
        document = json.loads(data)
        return {
            str(entry["filename"]): IndexFile(urljoin(url, entry["url"]), _sha256(entry)) for entry in document["files"]
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadIndexPage(f"index page: not PEP 691 JSON: {error!r}") from error


def _sha256(entry: Mapping[str, Any]) -> str:
    value = entry["hashes"].get("sha256", "")
    return value if isinstance(value, str) else ""


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]
