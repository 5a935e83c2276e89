"""Where this machine gets Debian packages: from settings, its apt sources or mmdebstrap. Pure but for reading files.

No host name stands in this package (decision 10); a lock names an archive by its role only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import HostError

#: Roles of archives: the main one, and the one with security updates.
DEBIAN, SECURITY = "debian", "debian-security"
#: Behind an archive's role: an archive that keeps old versions, asked when the mirror has a file no more.
SNAPSHOT = "-snapshot"
#: In the address of such an archive: the moment whose state is wanted, as Debian's own names it.
_MOMENT = "{date}"
#: Suites of Debian itself, without pocket: tells Debian's own entries in a host's apt sources from all
#: others (debian.org/releases, 2026-11).
_SUITES = frozenset(
    {"buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid", "unstable", "testing", "stable", "oldstable"}
)
_URL = re.compile(r"(?:https?|file):/\S+\Z")
_MMDEBSTRAP = re.compile(r"my \$(mirror|secmirror)\s*=\s*'((?:https?|file)://[^']+)'")
#: Debian's content network and most mirrors keep ``debian-security`` beside ``debian``. Hosts whose sources were
#: written for a minimal system (debootstrap, mmdebstrap with a mirror) name the main archive alone.
_SECURITY_SUFFIX = "-security"
#: Bytes read of a sources file or of mmdebstrap.
_MAX_SIZE = 4 << 20


class NoMirror(HostError):
    """Nothing on this machine says where Debian packages are."""


@dataclass(frozen=True, slots=True)
class Source:
    """One entry of apt's sources: an archive and the suites taken from it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of deb822 ``text``; names of fields in lower case, continuation lines joined by newlines.

    Source: deb822(5).
    """
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t" and name:
            fields[name] += "\n" + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    if fields:
        yield fields


def parse_deb822(text: str) -> list[Source]:
    """The enabled binary sources in a ``.sources`` file (sources.list(5), "deb822-style format")."""
    found = []
    for fields in paragraphs(text):
        if fields.get("enabled", "yes").lower() in {"no", "false", "0"} or "deb" not in fields.get("types", "").split():
            continue
        for uri in fields.get("uris", "").split():
            suites, components = fields.get("suites", "").split(), fields.get("components", "").split()
            found.append(Source(uri, tuple(suites), tuple(components), fields.get("signed-by", "")))
    return found


def parse_one_line(text: str) -> list[Source]:
    """The binary sources in a ``sources.list`` (sources.list(5), "one-line-style format")."""
    found = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^]]*)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line.strip())
        if match:
            options, uri, suite, components = match.groups()
            signed_by = re.search(r"signed-by=(\S+)", options or "")
            found.append(
                Source(uri, (suite,), tuple(components.split()), signed_by.group(1) if signed_by else ""),
            )
    return found


def archives_of(sources: Iterable[Source]) -> dict[str, str]:
    """The archive roots by role, chosen among a host's apt ``sources``; a role that none fits is absent.

    Debian's own entries take ``main`` of a Debian suite. Other vendors use the same suite names,
    so an entry beside which ``<suite>-updates`` stands, or signed by Debian's keyring, comes first.
    """
    usable = [s for s in sources if _URL.match(s.uri) and "main" in s.components]
    updated = {s.uri for s in usable for suite in s.suites if suite.endswith("-updates")}
    main: list[tuple[int, str]] = []
    security: list[tuple[int, str]] = []
    for source in usable:
        rank = 2 * (source.uri in updated) + ("debian-archive" in source.signed_by)
        for suite in source.suites:
            name, _, pocket = suite.replace("/updates", "-security").partition("-")
            if name in _SUITES and pocket in {"", "security"}:
                (security if pocket else main).append((rank, source.uri.rstrip("/")))
    roles = {DEBIAN: main, SECURITY: security}
    return {role: max(uris, key=lambda entry: entry[0])[1] for role, uris in roles.items() if uris}


def mmdebstrap_archives(text: str) -> dict[str, str]:
    """The default archives in the source ``text`` of mmdebstrap."""
    roles = {"mirror": DEBIAN, "secmirror": SECURITY}
    found: dict[str, str] = {}
    for name, uri in _MMDEBSTRAP.findall(text):
        found.setdefault(roles[name], uri)
    return found


def known_archives(configured: Mapping[str, str], *, root: Path = Path("/")) -> dict[str, str]:
    """Archive roots by role: as ``configured``, else this host's apt sources, else mmdebstrap's default.

    A role that none of them names is absent; but the security archive is then looked for beside the main one.
    """
    apt = root / "etc/apt"
    sources: list[Source] = []
    for file in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if file.suffix == ".list":
            sources += parse_one_line(_read(file))
        elif file.suffix == ".sources":
            sources += parse_deb822(_read(file))
    found = mmdebstrap_archives(_read(root / "usr/bin/mmdebstrap")) | archives_of(sources)
    found |= {role: url.rstrip("/") for role, url in configured.items()}
    if SECURITY not in found and found.get(DEBIAN, "").endswith("/debian"):
        found[SECURITY] = found[DEBIAN] + _SECURITY_SUFFIX
    return found


def find_archives(configured: Mapping[str, str], *, root: Path = Path("/")) -> dict[str, str]:
    """``known_archives`` with every role.

    Raises:
        NoMirror: nothing names one of them.
    """
    found = known_archives(configured, root=root)
    for role in (DEBIAN, SECURITY):
        if role not in found:
            raise NoMirror(
                f"Debian archive {role!r}: neither the settings, /etc/apt nor mmdebstrap name a mirror",
                hint=setting_hint("mirrors", role),
            )
    return found


def at(root: str, moment: str) -> str:
    """The snapshot archive ``root`` at ``moment``; "" when it needs one and there is none."""
    return root.replace(_MOMENT, moment) if moment or _MOMENT not in root else ""


def snapshot_archives(configured: Mapping[str, str], moment: str) -> dict[str, str]:
    """The roots of the archives that keep old versions, at ``moment``, by the roles of those that they keep.

    Raises:
        NoMirror: one of them is not configured, or its address has no place for the moment.
    """
    found = {}
    for role in (DEBIAN, SECURITY):
        root = configured.get(role + SNAPSHOT, "")
        if _MOMENT not in root:
            raise NoMirror(
                f"base.snapshot: mirrors.{role}{SNAPSHOT}: want an address with {_MOMENT} in it, got {root or 'none'}",
                hint=setting_hint("mirrors", role + SNAPSHOT),
            )
        found[role] = at(root, moment).rstrip("/")
    return found


def setting_hint(section: str, role: str) -> str:
    """How to name the host of ``role`` in the settings ``section``, as one imperative sentence."""
    variable = f"ENVBUILDER_{section}_{role}".upper().replace("-", "_")
    return f"Set {section}.{role} in envbuilder.toml, or {variable}."


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_SIZE).decode(errors="replace")
    except OSError:
        return ""
