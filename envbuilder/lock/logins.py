"""Credentials of uv (``~/.netrc``, ``uv auth login``) and of apt (``auth.conf``): for downloads of our own.

Sources: netrc(5); apt_auth.conf(5), whose ``machine`` may have a scheme, a port and a path; uv's documentation, "HTTP
credentials", and the file that uv 0.13.9 writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from envbuilder.errors import SpecErrors
from envbuilder.spec.toml import parse_toml

#: Bytes read of one file.
_MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class Login:
    """Who one is at ``machine``: a host, for apt also with scheme, port and path."""

    machine: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.machine!r}, ...)"  # the rest is secret


def parse_logins(text: str) -> tuple[Login, ...]:
    """The entries of ``text`` in their order; ``default`` and macros are left out, what is no entry too."""
    found: list[Login] = []
    fields: dict[str, str] = {}

    def end() -> None:
        if fields.get("machine") and (fields.get("login") or fields.get("password")):
            found.append(Login(fields["machine"], fields.get("login", ""), fields.get("password", "")))
        fields.clear()

    lines = iter(text.splitlines())
    for line in lines:
        words = iter([] if line.lstrip().startswith("#") else line.split())
        for word in words:
            if word in {"machine", "default"}:
                end()
            if word == "macdef":
                while next(lines, "").strip():
                    pass
                break
            if word in {"machine", "login", "account", "password"}:
                fields[word] = next(words, "")
    end()
    return tuple(found)


def with_login(url: str, logins: Iterable[Login], *, plain_http: bool = True) -> str:
    """``url`` with the first of ``logins`` that fits, unless it has one already.

    plain_http: whether an entry without a scheme is for http:// too: for netrc it is, for apt it is not.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or "@" in parts.netloc:
        return url
    for login in logins:
        scheme, _, place = login.machine.rpartition("://")
        host, slash, path = place.partition("/")
        schemes = {scheme} if scheme else {"https", "http"} if plain_http else {"https"}
        here = parts.netloc.lower() if ":" in host else (parts.hostname or "")
        below = not slash or f"{parts.path}/".startswith(f"/{path.rstrip('/')}/")
        if parts.scheme in schemes and host.lower() == here and below:
            user = f"{quote(login.user, safe='')}:{quote(login.password, safe='')}"
            return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))
    return url


def netrc_logins(environment: Mapping[str, str]) -> tuple[Login, ...]:
    """The entries of ``$NETRC``, else of ``~/.netrc``."""
    home = environment.get("HOME", "")
    file = environment.get("NETRC") or (f"{home}/.netrc" if home else "")
    return parse_logins(_read(Path(file))) if file else ()


def uv_logins(environment: Mapping[str, str]) -> tuple[Login, ...]:
    """What ``uv auth login`` stored in plain text; what is no such file gives none."""
    home = environment.get("HOME", "")
    data = environment.get("XDG_DATA_HOME") or (f"{home}/.local/share" if home else "")
    folder = environment.get("UV_CREDENTIALS_DIR") or (f"{data}/uv/credentials" if data else "")
    try:
        stored = parse_toml(_read(Path(folder, "credentials.toml")), source="uv's credentials") if folder else {}
    except SpecErrors:
        return ()
    entries = stored.get("credential")
    return tuple(
        Login(entry["service"].rstrip("/"), entry.get("username") or "", entry["password"])
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
        and entry.get("scheme") == "basic"
        and isinstance(entry.get("username") or "", str)
        and all(isinstance(entry.get(key), str) for key in ("service", "password"))
    )


def apt_logins(root: Path = Path("/")) -> tuple[Login, ...]:
    """The entries of ``/etc/apt/auth.conf`` and of the files of ``auth.conf.d``."""
    files = [root / "etc/apt/auth.conf", *sorted((root / "etc/apt/auth.conf.d").glob("*.conf"))]
    return tuple(login for file in files for login in parse_logins(_read(file)))


def _read(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_SIZE).decode(errors="replace")
    except OSError:
        return ""
