"""Credentials from a program of one's own: asked with a JSON request, answers with something of short life.

The protocol is in docs/registry.md, "Credential programs". Unlike Docker's helpers it says for which
repository and what, so that a program can hand out no more than is needed, and for how long.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envbuilder import proc
from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.errors import EnvbuilderError
from envbuilder.registry.credentials import Anonymous, Credential, CredentialSource, Found, is_header_word

_log = logging.getLogger("envbuilder.registry")
#: Seconds for an answer: the program may ask a cloud.
_TIMEOUT_S = 30.0
#: Seconds an answer is used when it does not say, and at most; renewed at 80 % (registry.md 7.3).
_DEFAULT_LIFE_S, _MAX_LIFE_S = 300.0, 3600.0 * 24
#: After a refusal it is asked anew, but not in a loop.
_AGAIN_S = 5.0
_MAX_ANSWER = 1 << 20
_Key = tuple[str, str, tuple[str, ...]]


def _reopened(commands: Mapping[str, Sequence[str]], otherwise: CredentialSource) -> HelperCredentials:
    return HelperCredentials(commands, otherwise)


class HelperCredentials:
    """Asks the program that ``commands`` has for a host; for other hosts ``otherwise``. Thread-safe."""

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        otherwise: CredentialSource | None = None,
        *,
        runner: proc.Runner = proc.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands = {host: tuple(words) for host, words in commands.items()}
        self._otherwise = otherwise or Anonymous()
        self._run, self._clock = runner, clock
        self._lock = threading.Lock()
        self._locks: dict[_Key, threading.Lock] = {}
        self._said: dict[_Key, tuple[float, float, Credential | None]] = {}
        self._refused: dict[str, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._commands, self._otherwise)

    def find(self, host: str, repository: str, actions: Sequence[str] = ()) -> Credential | None:
        command = self.command_for(host)
        if not command:
            return self._otherwise.find(host, repository, actions)
        key = (host, repository, tuple(actions))
        with self._lock:
            single = self._locks.setdefault(key, threading.Lock())
        with single:
            now = self._clock()
            asked_s, until_s, said = self._said.get(key, (0.0, 0.0, None))
            refused_s = self._refused.get(host, -1.0)
            stale = now >= until_s or (refused_s >= asked_s and now - asked_s >= _AGAIN_S)
            if key not in self._said or stale:
                said, life_s = self._ask(command, host, repository, actions)
                self._said[key] = (now, now + life_s, said)
            return said

    def look_up(self, host: str, repository: str = "") -> Found | None:
        """What ``find`` gives for reading, and the program it comes from; None for hosts without a program."""
        command = self.command_for(host)
        said = self.find(host, repository, ("pull",)) if command else None
        return Found(said, f"program {command[0]}") if said else None

    def command_for(self, host: str) -> tuple[str, ...]:
        """The program and its arguments for ``host``; () when there is none."""
        return self._commands.get(host) or self._commands.get(host.rpartition(":")[0]) or ()

    def refused(self, host: str) -> None:
        if self.command_for(host):
            self._refused[host] = self._clock()
        else:
            self._otherwise.refused(host)

    def _ask(
        self, command: Sequence[str], host: str, repository: str, actions: Sequence[str]
    ) -> tuple[Credential | None, float]:
        request = {"version": 1, "host": host, "repository": repository, "actions": list(actions)}
        _log.debug("%s: asked for %s on %s/%s", command[0], ",".join(actions) or "a login", host, repository)
        try:
            done = self._run(command, stdin=json.dumps(request).encode(), check=False, timeout_s=_TIMEOUT_S)
        except EnvbuilderError as error:
            _log.warning("%s; going on without it", error)
            return None, _AGAIN_S
        if done.status != 0:
            # Its words may hold anything, a secret too: they are not shown.
            _log.warning("%s: exit status %d for %s; going on without it", command[0], done.status, host)
            return None, _AGAIN_S
        answer = parse_answer(done.stdout)
        if answer is None:
            _log.warning("%s: no answer that we understand; going on without it", command[0])
            return None, _AGAIN_S
        return answer


def parse_answer(data: bytes) -> tuple[Credential | None, float] | None:
    """A program's credential, None for anonymous, and the seconds to use it; None if it is no answer at all."""
    try:
        value = parse_json_object(data[: _MAX_ANSWER + 1], source="answer")
    except InvalidJson:
        return None
    if len(data) > _MAX_ANSWER:
        return None
    life = value.get("expires_in", _DEFAULT_LIFE_S)
    if isinstance(life, bool) or not isinstance(life, (int, float)) or not 0 < life < float("inf"):
        return None
    life_s = 0.8 * min(life, _MAX_LIFE_S)
    username, password, token = (value.get(name, "") for name in ("username", "password", "token"))
    if isinstance(token, str) and is_header_word(token) and not username and not password:
        return Credential(registry_token=token), life_s
    if isinstance(username, str) and isinstance(password, str) and username and password and not token:
        return Credential(username=username, password=password), life_s
    return (None, life_s) if not username and not password and not token else None
