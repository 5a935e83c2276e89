"""Which Python index each role means on this machine: ours, uv's and pip's configuration, in this order.

uv reads its own configuration when it resolves; this module finds the same index for downloads, so
that a machine that is set up for uv or for pip needs nothing more. No host name stands in this package.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from envbuilder.errors import SpecErrors
from envbuilder.lock.keyring import KeyringIndexes, is_wanted
from envbuilder.lock.logins import netrc_logins, uv_logins, with_login
from envbuilder.proc import Runner, run
from envbuilder.spec.toml import parse_toml

DEFAULT = "default"
#: Before the address of a page of links, as in ``flat+https://...``: uv says it with ``format = "flat"``.
FLAT = "flat+"
#: Bytes of a configuration file that are read.
_MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """URLs of simple indexes (PEP 503, PEP 691), folders of wheels and pages of links to wheels, by role.

    all: every known role; ``default`` is always there.
    for_uv: those that uv must be told, because its own configuration does not have them.
    several: whether uv's own configuration may send it to more than one index.
    keyring: whether uv is told to ask a keyring. always: roles for which it asks that for the user too.
    """

    all: Mapping[str, str]
    for_uv: Mapping[str, str] = field(default_factory=dict)
    several: bool = False
    keyring: bool = False
    always: frozenset[str] = frozenset()

    def role_of(self, url: str) -> str | None:
        """The role of the index at ``url``, which may lack credentials; None when none is known."""
        roles = {_plain(known): role for role, known in self.all.items()}
        return roles.get(_plain(url))


def is_folder(index: str) -> bool:
    """Whether an index is a folder of wheels on this machine (uv's "flat" format), not an address."""
    return index.startswith(("/", "file:"))


def is_page(index: str) -> bool:
    """Whether an index is one page of links to wheels of all packages (find-links; uv's "flat" format)."""
    return index.startswith(FLAT)


def address_of(index: str) -> str:
    """The URL of ``index``, without our mark for pages of links."""
    return index.removeprefix(FLAT)


def folder_of(index: str) -> Path:
    """The folder that ``index``, for which ``is_folder`` holds, names."""
    return Path(unquote(urlsplit(index).path) if index.startswith("file:") else index)


def _plain(url: str) -> str:
    return str(folder_of(url)) if is_folder(url) else re.sub(r"//[^/@]*@", "//", address_of(url)).rstrip("/")


def python_indexes(
    environment: Mapping[str, str],
    configured: Mapping[str, str],
    *,
    uv_files: Iterable[str] = (),
    pip_files: Iterable[str] = (),
) -> Indexes:
    """The index of each role. Pure but for the import of pip, when nothing names a default index.

    Args:
        environment: variables of the process.
        configured: our own settings, ``indexes.<role>``.
        uv_files: texts of uv.toml files, the user's before the system's.
        pip_files: texts of pip.conf files, in order of precedence.

    Raises:
        SpecErrors: one of uv's files is not TOML.
    """
    documents = [parse_toml(text, source="uv.toml") for text in uv_files]
    uv = _from_uv(environment, documents)
    several = bool(environment.get("UV_INDEX") or environment.get("UV_EXTRA_INDEX_URL"))
    several |= any(key in table for document in documents for table in _tables(document) for key in _EXTRA_KEYS)
    pip = environment.get("PIP_INDEX_URL") or next(filter(None, map(_from_pip, pip_files)), "")
    found = {**uv, **configured}
    for_uv = dict(configured)
    if DEFAULT not in found and pip:
        found[DEFAULT] = for_uv[DEFAULT] = pip
    if DEFAULT not in found:
        # uv's built-in default is the same index. pip-tools takes it from here too; to import all of it costs 0.3 s.
        from pip._internal.models.index import PyPI  # noqa: PLC0415  seldom needed

        found[DEFAULT] = PyPI.simple_url
    return Indexes(
        all=found,
        for_uv=for_uv,
        several=several,
        keyring=is_wanted(environment, documents),
        always=frozenset(_always(documents)),
    )


#: Keys of uv.toml that may name an index beside the default one.
_EXTRA_KEYS = ("index", "extra-index-url", "find-links")


def _tables(document: dict[str, Any]) -> list[dict[str, Any]]:
    pip = document.get("pip")
    return [pip if isinstance(pip, dict) else {}, document]


def _from_uv(environment: Mapping[str, str], documents: list[dict[str, Any]]) -> dict[str, str]:
    """Named indexes and the default one, as uv finds them (uv documentation, "Package indexes")."""
    found: dict[str, str] = {}

    def add(name: str, url: str, *, default: bool) -> None:
        url = _with_credentials(name, url, environment)
        found.update({role: url for role in (name, DEFAULT if default else "") if role})

    for document in reversed(documents):
        for table in _tables(document):
            if isinstance(url := table.get("index-url"), str):
                add("", url, default=True)
        entries = document.get("index")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and isinstance(entry.get("url"), str):
                name = entry.get("name")
                flat = FLAT if entry.get("format") == "flat" and not is_folder(entry["url"]) else ""
                add(name if isinstance(name, str) else "", flat + entry["url"], default=entry.get("default") is True)
    for word in environment.get("UV_INDEX", "").split():
        add(*_named(word), default=False)
    for variable in ("UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        if value := environment.get(variable, ""):
            add(*_named(value), default=True)
    return found


def _always(documents: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Names of indexes with ``authenticate = "always"``."""
    for document in documents:
        entries = document.get("index")
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("authenticate") == "always":
                yield from (str(entry["name"]),) if "name" in entry else ()
                yield from (DEFAULT,) if entry.get("default") is True else ()


def _is_broken(index: str) -> bool:
    """Whether ``index`` has a scheme, and then no host, a port that is no number, or a blank."""
    if "://" not in index:
        return False  # uv takes a relative path too
    try:
        parts = urlsplit(address_of(index))
        return not parts.hostname or parts.port == 0 or bool(re.search(r"\s", index))
    except ValueError:
        return True


def _named(text: str) -> tuple[str, str]:
    """Name and address in ``name=https://...``; the name is "" when there is none."""
    match = re.fullmatch(r"([A-Za-z0-9_-]+)=(.+)", text)
    return (match[1], match[2]) if match else ("", text)


def _with_credentials(name: str, url: str, environment: Mapping[str, str]) -> str:
    """``url`` with the credentials that UV_INDEX_<NAME>_USERNAME and _PASSWORD give, unless it has its own."""
    prefix = f"UV_INDEX_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_"
    user, password = environment.get(prefix + "USERNAME", ""), environment.get(prefix + "PASSWORD", "")
    if not name or not (user or password):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:  # whoever wants the address says so
        return url
    if "@" in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc}"))


def _from_pip(text: str) -> str:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error:
        return ""
    return parser.get("global", "index-url", fallback="").strip()


def read_python_indexes(
    environment: Mapping[str, str], configured: Mapping[str, str], *, runner: Runner | None = run
) -> Indexes:
    """``python_indexes`` with the configuration files that uv and pip would read on this machine.

    runner: starts the keyring of a machine whose uv is told to ask one, once an address is looked at; None: it is not
        asked.

    Raises:
        SpecErrors: one of uv's files is not TOML, or an index is neither an address nor a folder.
    """
    home = Path(environ_home) if (environ_home := environment.get("HOME", "")) else None
    config = [Path(folder) for folder in [environment.get("XDG_CONFIG_HOME", "")] if folder]
    config += [home / ".config"] if home and not config else []
    system = [Path(folder) for folder in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if folder]
    uv = [folder / "uv/uv.toml" for folder in (*config, *system)] + [Path("/etc/uv/uv.toml")]
    if chosen := environment.get("UV_CONFIG_FILE"):
        uv = [Path(chosen)]
    pip = [Path(chosen)] if (chosen := environment.get("PIP_CONFIG_FILE")) else []
    pip += [folder / "pip/pip.conf" for folder in config] + ([home / ".pip/pip.conf"] if home else [])
    pip += [folder / "pip/pip.conf" for folder in system] + [Path("/etc/pip.conf")]
    if environment.get("UV_NO_CONFIG"):
        uv = []
    if relative := sorted(role for role, url in configured.items() if not is_folder(url) and "://" not in url):
        problems = [f"indexes.{role}: want an address or an absolute path" for role in relative]
        raise SpecErrors("settings", problems, hint="See docs/locks.md for indexes that are folders.")
    try:
        found = python_indexes(environment, configured, uv_files=map(_text, uv), pip_files=map(_text, pip))
    except SpecErrors as error:
        raise SpecErrors("uv's configuration", error.problems) from error
    if broken := sorted(role for role, url in found.all.items() if not is_folder(url) and _is_broken(url)):
        # uv would print it, and what is wrong with it is often a password.
        problems = [f"indexes.{role}: not an address" for role in broken]
        raise SpecErrors("settings", problems, hint="Write '/', '@', ':' and blanks of a password in percents (%2F).")
    logins = (*netrc_logins(environment), *uv_logins(environment))  # uv reads them itself, in this order

    def logged_in(url: str) -> str:
        return (FLAT if is_page(url) else "") + with_login(address_of(url), logins)

    known: Mapping[str, str] = {role: logged_in(url) for role, url in found.all.items()}
    if found.keyring and runner:
        known = KeyringIndexes(known, always=found.always, runner=runner, environment=environment)
    return replace(found, all=known)


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_SIZE).decode(errors="replace")
    except OSError:
        return ""
