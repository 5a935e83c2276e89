"""Passwords of indexes that are kept in a keyring: the program ``keyring`` is asked as uv asks it, once, when needed.

Source: uv's documentation, "HTTP credentials" (``--keyring-provider subprocess``), and what uv 0.13.9 was seen to ask:
the index's address, then its host; for an address with a user his password, for others both, if the index is one to
authenticate always.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from envbuilder.proc import ProgramFailed, ProgramMissing, Runner

_log = logging.getLogger("envbuilder.lock")
#: Seconds that a keyring may take: it may ask somebody to unlock it.
_TIMEOUT_S = 120.0
#: An index that is no folder: our mark of pages of links, and the address.
_ADDRESS = re.compile(r"([a-z]+\+)?(https?://.+)")
#: What uv calls the way that we know of its ``keyring-provider``.
_SUBPROCESS = "subprocess"


def is_wanted(environment: Mapping[str, str], documents: Collection[Mapping[str, Any]]) -> bool:
    """Whether uv is told to ask a keyring: by UV_KEYRING_PROVIDER, else by the first uv.toml that says anything."""
    said = [environment.get("UV_KEYRING_PROVIDER")]
    for document in documents:
        pip = document.get("pip")
        said += [table.get("keyring-provider") for table in (pip, document) if isinstance(table, dict)]
    return next((each for each in said if each), "") == _SUBPROCESS


class KeyringIndexes(Mapping[str, str]):
    """Addresses by role. What one lacks of its credentials is asked for when it is looked up, and not before.

    A Mapping, thread-safe. always: roles whose user is in the keyring too.
    """

    def __init__(
        self, addresses: Mapping[str, str], *, always: Collection[str], runner: Runner, environment: Mapping[str, str]
    ) -> None:
        self._addresses, self._always = dict(addresses), frozenset(always)
        self._runner, self._environment = runner, environment
        self._lock = threading.Lock()
        self._whole: dict[str, str] = {}

    def __getitem__(self, role: str) -> str:
        address = self._addresses[role]
        with self._lock:
            if role not in self._whole:
                self._whole[role] = self._asked(address, both=role in self._always)
            return self._whole[role]

    def __contains__(self, role: object) -> bool:
        return role in self._addresses

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    def _asked(self, address: str, *, both: bool) -> str:
        match = _ADDRESS.fullmatch(address)
        parts = urlsplit(match[2] if match else "")
        if match is None or parts.password or not (parts.username or both):
            return address
        place = parts.netloc.rpartition("@")[2]
        user = unquote(parts.username or "")
        for service in (urlunsplit(parts._replace(netloc=place)), place):
            if login := self._ask(service, user):
                name, password = (quote(word, safe="") for word in login)
                return (match[1] or "") + urlunsplit(parts._replace(netloc=f"{name}:{password}@{place}"))
        return address

    def _ask(self, service: str, user: str) -> tuple[str, str] | None:
        """User and password of ``service``; None when the keyring has none, or is none."""
        argv = ["keyring", "get", service, *([user] if user else ["--mode", "creds"])]
        try:
            done = self._runner(argv, env=self._environment, check=False, timeout_s=_TIMEOUT_S)
        except (ProgramMissing, ProgramFailed):
            # What it said may hold a secret.
            _log.warning("keyring: gave no answer for %s; uv's keyring-provider asks for it", service)
            return None
        lines = done.stdout.decode(errors="replace").splitlines()
        if done.status or len(lines) < (1 if user else 2):
            return None
        return (user, lines[0]) if user else (lines[0], lines[1])
