"""What a base of others has installed: Debian packages by its dpkg status, Python packages by their .dist-info.

Nothing of it is locked by us; it is listed in SBOMs as its own database has it. Sources: deb822 (dpkg's status, and
status.d of images without dpkg); packaging.python.org, "Recording installed projects".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from envbuilder.image.base_tree import BaseTree
from envbuilder.layer.model import Layer
from envbuilder.store.target import RangeTarget

_STATUS, _PARTS = "var/lib/dpkg/status", "var/lib/dpkg/status.d"
#: Bytes of a dpkg status: a desktop of 5,000 packages has 8 MB.
_MAX_STATUS = 64 << 20
_FIELD = re.compile(r"^(Package|Version|Architecture|Status): (\S[^\n]*)$", re.MULTILINE)
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_DIST_INFO = re.compile(
    r"(?:site|dist)-packages/([A-Za-z0-9][A-Za-z0-9._-]*)-([0-9][A-Za-z0-9.!+_]*)\.(?:dist-info|egg-info)\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BasePackage:
    """A package that a base has; ``architecture`` is of a Debian package."""

    kind: Literal["deb", "wheel"]
    name: str
    version: str
    architecture: str = ""


def base_packages(layers: Sequence[Layer], store: RangeTarget) -> tuple[BasePackage, ...]:
    """The packages of ``layers``, those of a base, whose blobs are in ``store``; sorted, each once."""
    if not layers:
        return ()
    tree = BaseTree(layers, store)
    found = set(_debian(tree.read(_STATUS, _MAX_STATUS) or b""))
    folder = tree.find(_PARTS)
    for name in sorted(folder[1].children) if folder else ():
        if not name.endswith(".md5sums"):
            found.update(_debian(tree.read(f"{folder[0]}/{name}", _MAX_STATUS) or b"", listed=True) if folder else ())
    for path, _ in tree.merged.walk():
        if match := _DIST_INFO.search(path):
            found.add(BasePackage(kind="wheel", name=canonicalize_name(match[1]), version=match[2]))
    return tuple(sorted(found))


def _debian(data: bytes, *, listed: bool = False) -> Iterator[BasePackage]:
    """listed: each paragraph is of an installed package, whether or not it says so."""
    for paragraph in re.split(r"\n\s*\n", data.decode("utf-8", "replace")):
        fields = {match[1]: match[2].strip() for match in _FIELD.finditer(paragraph)}
        name, version = fields.get("Package", ""), fields.get("Version", "")
        installed = listed or fields.get("Status", "").endswith(" installed")
        if installed and version and _PACKAGE.match(name):
            architecture = fields.get("Architecture", "")
            yield BasePackage(kind="deb", name=name, version=version, architecture=architecture)
