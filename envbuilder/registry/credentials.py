"""Who we are to a registry: Docker's config.json, podman's auth.json, credential helpers.

Sources: docker/cli config file, containers-auth.json(5), docker-credential-helpers protocol.
Passwords are never part of a repr, a message or a log.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from envbuilder import proc
from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.errors import EnvbuilderError, SpecError

_log = logging.getLogger("envbuilder.registry")
#: A helper's name becomes part of a program's name (registry.md 7.2).
_HELPER = re.compile(r"[A-Za-z0-9_.-]+\Z")
MAX_CONFIG_SIZE = 4 << 20
_MAX_ANSWER = 1 << 20
#: Helpers may ask a cloud or a key ring.
HELPER_TIMEOUT_S = 60.0
#: What a helper said is used again for an hour at most; after a refusal it is asked anew, but not in a loop.
_HELPER_CACHE_S = 3600.0
_HELPER_AGAIN_S = 5.0
#: Docker Hub's entry in every config file.
HUB_KEY = "https://index.docker.io/v1/"
HUB_HOSTS = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


class InvalidCredentials(SpecError):
    """A file of credentials is malformed; the message never shows its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A name and password, an identity token that is traded for access tokens, or a token for the registry itself."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return "registry token" if self.registry_token else "identity token" if self.identity_token else "password"

    @property
    def basic(self) -> str:
        """The value of a Basic Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class CredentialSource(Protocol):
    """Finds credentials; thread-safe."""

    def find(self, host: str, repository: str, actions: Sequence[str] = ()) -> Credential | None:
        """Who we are to ``host`` for ``actions`` (pull, push) on ``repository``, "" for none. None: anonymous."""

    def refused(self, host: str) -> None:
        """What was found for ``host`` was refused: ask anew the next time."""


class Anonymous:
    """No credentials for anyone."""

    def find(self, host: str, repository: str, actions: Sequence[str] = ()) -> Credential | None:  # noqa: ARG002  # the protocol's names
        return None

    def refused(self, host: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Found:
    """A credential and where it comes from: a file and its entry, or a program."""

    credential: Credential
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConfig:
    """What we read of one config file; entries are kept as they stand until one is needed."""

    source: str = ""
    auths: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False, hash=False)
    helpers: Mapping[str, str] = field(default_factory=dict, hash=False)
    store: str = ""


def parse_docker_config(data: bytes, *, source: str) -> DockerConfig:
    """The config in ``data``.

    Raises:
        InvalidCredentials: it is not one.
    """
    try:
        value = parse_json_object(data, source=source)
    except InvalidJson as error:
        raise InvalidCredentials(f"{source}: not a JSON object with single keys") from error
    auths, helpers, store = value.get("auths") or {}, value.get("credHelpers") or {}, value.get("credsStore") or ""
    if not isinstance(auths, dict) or not isinstance(helpers, dict) or not isinstance(store, str):
        raise InvalidCredentials(f"{source}: want auths and credHelpers that are objects, credsStore a string")
    entries = {str(key): entry for key, entry in auths.items() if isinstance(entry, dict)}
    return DockerConfig(
        source=source,
        auths=entries,
        # "" is Docker's way to keep one host's entry in the file where all others have a store.
        helpers={str(key): _helper_name(str(name), source) if name else "" for key, name in helpers.items()},
        store=_helper_name(store, source) if store else "",
    )


def credential_files(environment: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Where credentials are looked for, first match wins (registry.md 7.1); files may be missing."""
    files = []
    if explicit := environment.get("REGISTRY_AUTH_FILE"):
        files.append(Path(explicit))
    files.append(Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        files.append(Path(runtime) / "containers" / "auth.json")
    files.append(Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json")
    return tuple(files)


def _reread(files: Sequence[Path], inline: str) -> ConfigCredentials:
    return ConfigCredentials(files, inline=inline)


class ConfigCredentials:
    """Credentials of config ``files``, read at the first question; helpers run through ``runner``.

    ``inline`` is the text of ``$DOCKER_AUTH_CONFIG``, asked before all files.
    """

    def __init__(
        self,
        files: Sequence[Path],
        *,
        inline: str = "",
        runner: proc.Runner = proc.run,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._inline, self._run, self._clock = tuple(files), inline, runner, clock
        self._lock = threading.Lock()
        self._asking: dict[tuple[str, str], threading.Lock] = {}
        self._configs: tuple[DockerConfig, ...] | None = None
        self._said: dict[tuple[str, str], tuple[float, Credential | None]] = {}
        self._refused: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reread, (self._files, self._inline)

    def find(self, host: str, repository: str, actions: Sequence[str] = ()) -> Credential | None:  # noqa: ARG002  # the protocol's names
        found = self.look_up(host, repository)
        return found.credential if found else None

    def look_up(self, host: str, repository: str = "") -> Found | None:
        """What ``find`` gives, and where it comes from."""
        with self._lock:
            if self._configs is None:
                self._configs = self._read()
            configs = self._configs
        for config in configs:
            if found := self._find(config, host, repository):
                return found
        return None

    def refused(self, host: str) -> None:
        with self._lock:
            self._refused.add(host)
            self._configs = None

    def _read(self) -> tuple[DockerConfig, ...]:
        configs = []
        if self._inline:
            configs.append(parse_docker_config(self._inline.encode(), source="$DOCKER_AUTH_CONFIG"))
        for file in self._files:
            try:
                with file.open("rb") as stream:
                    data = stream.read(MAX_CONFIG_SIZE)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InvalidCredentials(f"{file}: {error.strerror}", hint="Make the file readable.") from error
            if data.strip():
                configs.append(parse_docker_config(data, source=str(file)))
        return tuple(configs)

    def _find(self, config: DockerConfig, host: str, repository: str) -> Found | None:
        keys = keys_for(host, repository)
        for key in keys:
            if name := config.helpers.get(key):
                said = self._ask(name, host)
                return Found(said, f"{config.source}: credHelpers: docker-credential-{name}") if said else None
        for key in keys:
            if (entry := config.auths.get(key)) and (found := _credential(entry)):
                return Found(found, f"{config.source}: auths: {key}")
        store = "" if any(key in config.helpers for key in keys) else config.store
        said = self._ask(store, host) if store else None
        return Found(said, f"{config.source}: credsStore: docker-credential-{config.store}") if said else None

    def _ask(self, helper: str, host: str) -> Credential | None:
        key = (helper, host)
        with self._lock:
            single = self._asking.setdefault(key, threading.Lock())
        # It may wait for a cloud or a person: only who asks about the same host waits too.
        with single:
            now = self._clock()
            with self._lock:
                life_s = _HELPER_AGAIN_S if host in self._refused else _HELPER_CACHE_S
                asked, said = self._said.get(key, (now - life_s, None))
                if now - asked < life_s:
                    return said
                self._refused.discard(host)
            said = self._run_helper(helper, HUB_KEY if host in HUB_HOSTS else host)
            with self._lock:
                self._said[key] = (now, said)
            return said

    def _run_helper(self, helper: str, server: str) -> Credential | None:
        program = f"docker-credential-{helper}"
        try:
            done = self._run([program, "get"], stdin=server.encode(), check=False, timeout_s=HELPER_TIMEOUT_S)
        except EnvbuilderError as error:
            _log.warning("%s: %s; going on without it", program, error)
            return None
        if done.status != 0:
            # Its words may be "credentials not found" or hold anything at all: neither is shown.
            _log.debug("%s: status %d for %s", program, done.status, server)
            return None
        try:
            value = parse_json_object(done.stdout[: _MAX_ANSWER + 1], source=program)
            username, secret = value["Username"], value["Secret"]
            if not isinstance(username, str) or not isinstance(secret, str) or len(done.stdout) > _MAX_ANSWER:
                raise TypeError
        except (InvalidJson, KeyError, TypeError):
            _log.warning("%s: no answer that we understand; going on without it", program)
            return None
        if not username or not secret:
            return None  # some say so of a host that they don't know
        if username == "<token>":
            return Credential(identity_token=secret)
        return Credential(username=username, password=secret)


def keys_for(host: str, repository: str) -> list[str]:
    """Keys of a config file that mean ``host``, the most specific first."""
    parts = repository.split("/") if repository else []
    keys = [f"{host}/{'/'.join(parts[:count])}" for count in range(len(parts), 0, -1)]
    keys += [host, f"https://{host}", f"http://{host}"]
    keys += [f"{scheme}{host}/{version}" for scheme in ("https://", "http://", "") for version in ("v1/", "v2/", "")]
    if host in HUB_HOSTS:
        keys += [HUB_KEY, "docker.io", "index.docker.io"]
    return keys


def _credential(entry: Mapping[str, Any]) -> Credential | None:
    if isinstance(token := entry.get("registrytoken"), str) and is_header_word(token):
        return Credential(registry_token=token)
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Credential(identity_token=token)
    username, password = entry.get("username"), entry.get("password")
    if isinstance(auth := entry.get("auth"), str) and auth:
        try:
            username, _, password = base64.b64decode(auth, validate=True).decode().rstrip("\0").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise InvalidCredentials("auths: an entry's 'auth' is not base64 of name:password") from None
    if not isinstance(username, str) or not isinstance(password, str) or not username:
        return None
    if username == "<token>":
        return Credential(identity_token=password)
    return Credential(username=username, password=password)


def is_header_word(text: str) -> bool:
    """Whether ``text`` may stand in a header as a token."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _helper_name(name: str, source: str) -> str:
    if not _HELPER.match(name):
        raise InvalidCredentials(f"{source}: not the name of a credential helper: {name[:60]!r}")
    return name
