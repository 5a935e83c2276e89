"""What a 401 asks for: the WWW-Authenticate header, parsed without trust.

Source: RFC 9110, 11.6.1; distribution's token specification.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SPACE = re.compile(r"[\s,]*")
#: Characters of a header that we look at, and challenges in it.
_MAX_HEADER = 16 << 10
_MAX_CHALLENGES = 16


@dataclass(frozen=True, slots=True)
class Challenge:
    """One scheme, in lower case, with its parameters (names in lower case)."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict, hash=False)


def parse_challenges(header: str) -> list[Challenge]:
    """The challenges in ``header``; what can't be understood ends the list. Never fails."""
    header = header[:_MAX_HEADER]
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(header) and len(found) <= _MAX_CHALLENGES:
        position = _end(_SPACE, header, position)
        if not (word := _TOKEN.match(header, position)):
            break
        after = _end(re.compile(r"\s*"), header, word.end())
        if header[after : after + 1] == "=" and found and header[after + 1 : after + 2] != "=":
            value_at = _end(re.compile(r"\s*"), header, after + 1)
            value = _QUOTED.match(header, value_at) or _TOKEN.match(header, value_at)
            if value is None:
                break
            text = re.sub(r"\\(.)", r"\1", value[1]) if value.re is _QUOTED else value[0]
            found[-1][1].setdefault(word[0].lower(), text)
            position = value.end()
        else:
            found.append((word[0].lower(), {}))
            position = word.end()
            # "Negotiate abc==": a token68 in place of parameters says nothing to us.
            if after > word.end() and (blob := _TOKEN68.match(header, after)) and "=" not in blob[0].rstrip("="):
                is_scheme = _TOKEN.fullmatch(blob[0]) is not None and not blob[0].endswith("=")
                position = position if is_scheme else blob.end()
    return [Challenge(scheme, parameters) for scheme, parameters in found[:_MAX_CHALLENGES]]


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position
