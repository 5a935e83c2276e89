"""Licences of the packages in built layers, read from the layers themselves: no artefact is fetched for them.

Wheels say theirs in METADATA (core metadata 2.4, License-Expression; classifiers; License), Debian packages
in usr/share/doc/<package>/copyright (DEP-5, machine-readable copyright files). What neither says in words
that SPDX has is passed on as text: a wrong identifier would be worse than none.
"""

from __future__ import annotations

import email
import email.policy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from license_expression import ExpressionError, ExpressionParseError, get_spdx_licensing

from envbuilder.digest import Digest
from envbuilder.image.inspect import fetch_index
from envbuilder.layer.frames import read_chunk
from envbuilder.layer.model import Layer
from envbuilder.paths import resolve_link
from envbuilder.store.layout import LayoutTarget

#: Raised when the reading changes: older answers in the store are then not believed.
_FORMAT = 1
#: Bytes of one METADATA or copyright file that are read; texts come after what matters.
_MAX_SIZE = 1 << 20
_METADATA = re.compile(r".*/([^/]+)\.dist-info/METADATA\Z")
_COPYRIGHT = re.compile(r"usr/share/doc/([a-z0-9][a-z0-9+.-]+)/copyright\Z")
#: Short names of DEP-5 that SPDX writes otherwise.
_DEP5 = {
    "expat": "MIT",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-4-clause": "BSD-4-Clause",
    "apache-2": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "artistic-2": "Artistic-2.0",
    "perl": "Artistic-1.0-Perl OR GPL-1.0-or-later",
    "zlib": "Zlib",
    "isc": "ISC",
    "psf-2": "PSF-2.0",
}
_GNU = re.compile(r"(A?GPL|LGPL|GFDL)-(\d(?:\.\d)?)(\+?)\Z", re.IGNORECASE)
#: Trove classifiers that name one licence of SPDX; the others leave the version open.
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "zlib/libpng License": "Zlib",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.0-or-later",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Lesser General Public License v3 or later (LGPLv3+)": "LGPL-3.0-or-later",
}


def licences(layers: Sequence[Layer], store: LayoutTarget) -> dict[str, str]:
    """``wheel:<name>`` and ``deb:<name>`` -> an SPDX expression, or words; packages that say nothing are left out.

    What a layer says is remembered in the store under its plan key.
    """
    found: dict[str, str] = {}
    links: dict[str, str] = {}
    for layer in layers:
        found |= _of_layer(layer, store)
        links |= {placed.path: placed.link for placed in layer.placed if placed.path.startswith("usr/share/doc/")}
    for path, link in links.items():  # a package may use another's documentation
        package, _, rest = path.removeprefix("usr/share/doc/").partition("/")
        target = resolve_link(path, link) if link and rest in {"", "copyright"} else None
        if target and target.startswith("usr/share/doc/") and f"deb:{package}" not in found:
            other = target.removeprefix("usr/share/doc/").split("/")[0]
            found |= {f"deb:{package}": found[f"deb:{other}"]} if f"deb:{other}" in found else {}
    return found


def record_name(plan_key: Digest) -> str:
    """Under what a store remembers the licences in the layer of ``plan_key``."""
    return f"licences-{_FORMAT}-{plan_key.hex}"


def _of_layer(layer: Layer, store: LayoutTarget) -> dict[str, str]:
    key = record_name(layer.plan_key)
    known = store.records.get(key)
    if known is not None:
        return {str(name): str(text) for name, text in json.loads(known).items()}
    found: dict[str, str] = {}
    said = [placed for placed in layer.placed if placed.size and placed.path.endswith(("/METADATA", "/copyright"))]
    wanted = [(placed, kind) for placed in said if (kind := _kind(placed.path))]
    if wanted:
        index, chunk, plain = fetch_index(store, layer.blob), None, b""
        for placed, name in wanted:
            data = b""
            while len(data) < min(placed.size, _MAX_SIZE):
                at = placed.offset + len(data)
                if chunk is None or not chunk.offset <= at < chunk.offset + chunk.size:
                    chunk = index.chunk_at(at)
                    stored = store.fetch_range(layer.blob, chunk.blob_offset, chunk.blob_size)
                    plain = read_chunk(chunk, stored, source=str(layer.blob.digest))
                data += plain[at - chunk.offset : at - chunk.offset + placed.size - len(data)]
            text = data.decode("utf-8", "replace")
            if licence := of_metadata(text) if name.startswith("wheel:") else of_copyright(text):
                found[name] = licence
    store.records.put(key, json.dumps(found, sort_keys=True).encode())
    return found


def _kind(path: str) -> str:
    if match := _METADATA.match(path):
        return "wheel:" + re.sub(r"[-_.]+", "-", match[1].rpartition("-")[0]).lower()
    if match := _COPYRIGHT.match(path):
        return "deb:" + match[1]
    return ""


def of_metadata(text: str) -> str:
    """The licence in a wheel's METADATA: its expression, else its classifiers, else the first line of License."""
    fields = email.message_from_string(text, policy=email.policy.compat32)
    if expression := str(fields.get("License-Expression", "")).strip():
        return expression
    names = [str(each).rpartition(" :: ")[2] for each in fields.get_all("Classifier", []) if "License ::" in str(each)]
    known = sorted({_CLASSIFIERS[name] for name in names if name in _CLASSIFIERS})
    if known and len(known) == len(set(names)):
        return " AND ".join(known)
    words = str(fields.get("License", "")).strip().split("\n")[0].strip()[:200]
    return words if words and words.upper() != "UNKNOWN" else ", ".join(sorted(set(names)))


def of_copyright(text: str) -> str:
    """All licences that a machine-readable copyright file names for its files; "" for one that is prose."""
    if not text.startswith("Format:") and "\nFormat:" not in text[:2000]:
        return ""
    parts: set[str] = set()
    for paragraph in re.split(r"\n\s*\n", text):
        if re.match(r"(Files|Format):", paragraph.lstrip()) and (
            found := re.search(r"^License:[ \t]*(\S[^\n]*)$", paragraph, re.MULTILINE)
        ):
            parts.add(_from_dep5(found[1].strip()))
    return " AND ".join(f"({part})" if " OR " in part and len(parts) > 1 else part for part in sorted(parts))


def _from_dep5(words: str) -> str:
    out = []
    for word in re.split(r"(\s+(?:or|and)\s+|,\s*(?:or|and)\s+)", words):
        name = word.strip().strip(",").strip()
        if name.lower() in {"or", "and"}:
            out.append(name.upper())
        elif gnu := _GNU.match(name):
            version = gnu[2] if "." in gnu[2] else f"{gnu[2]}.0"
            out.append(f"{gnu[1].upper()}-{version}-{'or-later' if gnu[3] else 'only'}")
        else:
            out.append(_DEP5.get(name.lower(), name))
    return " ".join(out)


@lru_cache(maxsize=1)
def _spdx() -> Any:
    return get_spdx_licensing()


class Licensing:
    """Tells SPDX expressions from words; the table of identifiers is read once."""

    def __init__(self) -> None:
        self._spdx = _spdx()

    def is_expression(self, text: str) -> bool:
        """Whether ``text`` is a valid SPDX 2.3 licence expression of known identifiers."""
        try:
            return bool(text) and self._spdx.parse(text, validate=True) is not None
        except (ExpressionError, ExpressionParseError):
            return False

    def normal(self, text: str) -> str:
        """The expression with the identifiers spelt as SPDX spells them."""
        return str(self._spdx.parse(text))


def words_of(licences_by_package: Mapping[str, str], licensing: Licensing) -> Iterable[str]:
    """The licences that are no SPDX expression, each once, sorted."""
    return sorted({text for text in licences_by_package.values() if not licensing.is_expression(text)})
