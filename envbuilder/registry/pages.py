"""Lists that come in pages: tags and referrers. Followed only within the registry, bounded in pages and bytes.

Source: OCI distribution-spec 1.1, "Listing Tags", "Listing Referrers" (RFC 5988 Link headers); caps: registry.md 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from envbuilder.registry.addresses import Origin
from envbuilder.registry.answer import Answer
from envbuilder.registry.client import Call, Registry
from envbuilder.registry.errors import BadAnswer

#: Bytes of all pages together, and pages: far above what any repository has, far below what hurts.
MAX_TOTAL = 64 << 20
MAX_PAGES = 1_000
_LINK = r'<([^<>]*)>((?:\s*;\s*[\w-]+\s*=\s*(?:"[^"]*"|[^\s;,"]+))*)'
_PARAMETER = r';\s*([\w-]+)\s*=\s*(?:"([^"]*)"|([^\s;,"]+))'


def next_link(header: str) -> str:
    """The target of the first link of ``header`` whose relation is ``next``, or ""."""
    for link, parameters in re.findall(_LINK, header):
        named = {name.lower(): quoted or bare for name, quoted, bare in re.findall(_PARAMETER, parameters)}
        if "next" in named.get("rel", "").lower().split():
            return str(link)
    return ""


def pages(registry: Registry, call: Call, first: Answer) -> Iterator[tuple[Answer, bytes]]:
    """``first``, the answer to ``call``, and every page behind it, each with its whole body.

    Raises:
        BadAnswer: more than the caps, a page that was seen before, or one outside of this list's own path.
    """
    answer, left, seen = first, MAX_TOTAL, {call.url}
    path = urlsplit(call.url).path
    while True:
        answer, data = registry.whole(call, answer, left)
        left -= len(data)
        yield answer, data
        link = next_link(answer.headers.get("Link", ""))
        if not link:
            return
        url = registry.follow(link, answer.url)
        if Origin.of(url) != registry.origin or urlsplit(url).path != path:
            raise BadAnswer(f"{answer.where}: its next page is on another host or path")
        if url in seen or len(seen) >= MAX_PAGES:
            raise BadAnswer(f"{answer.where}: want at most {MAX_PAGES} pages, each once, got more")
        seen.add(url)
        call = replace(call, url=url)
        answer = registry.request(call, (200,))
