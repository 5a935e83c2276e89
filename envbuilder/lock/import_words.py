"""Small questions about the words of files that are imported. Pure."""

from __future__ import annotations

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet

_MINOR = re.compile(r"3\.[0-9]+")
#: Name and password in an address, and what follows its path: signed addresses have secrets there.
_USER = re.compile(r"(?<=//)[^/@\s]*@")
_QUERY = re.compile(r"(?<=://)(\S*?)\?[^\s#]*")
#: Minor versions of Python 3 that an upper limit alone is tried with, the newest first.
_MINORS = range(60, -1, -1)


def without_secrets(text: str) -> str:
    """``text`` without the credentials of addresses in it, as one line that a comment may hold."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", _QUERY.sub(r"\1", _USER.sub("", text)))


def oldest_python(text: str) -> str:
    """The lowest Python that ``text``, a ``requires-python``, names and allows: "3.12"; "" when it names none."""
    named = sorted(set(_MINOR.findall(text)), key=_minor)
    if not named:
        return ""
    try:
        allowed = SpecifierSet(text)
    except InvalidSpecifier:
        return str(named[0])
    fits = [minor for minor in named if any(map(allowed.contains, _versions(minor, allowed)))]
    if fits:
        return str(fits[0])
    return next((f"3.{minor}" for minor in _MINORS if allowed.contains(f"3.{minor}.99")), "")


def unquoted(scalar: str) -> str:
    """A YAML scalar of one line without its quotes; inner quotes, as markers have them, stay."""
    for quote in ("'", '"'):
        if len(scalar) > 1 and scalar[0] == quote == scalar[-1]:
            return scalar[1:-1].replace("''", "'") if quote == "'" else scalar[1:-1]
    return scalar


def _minor(text: str) -> int:
    return int(text.partition(".")[2])


def _versions(minor: str, allowed: SpecifierSet) -> list[str]:
    """Versions of ``minor``, and those that ``allowed`` names: ``==3.12.3`` allows no other."""
    full = [each.version for each in allowed if each.version.startswith(f"{minor}.") and "*" not in each.version]
    return [f"{minor}.0", f"{minor}.99", *full]
