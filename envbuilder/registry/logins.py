"""Logins that stay: into the file or the helper that Docker or podman would use, and out again.

Sources: docker/cli ``login`` and its config file; containers-auth.json(5); docker-credential-helpers protocol.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder import proc
from envbuilder.digest import InvalidJson, parse_json_object
from envbuilder.errors import HostError, SpecError
from envbuilder.registry.client import Call, Registry
from envbuilder.registry.credentials import (
    HELPER_TIMEOUT_S,
    HUB_HOSTS,
    HUB_KEY,
    MAX_CONFIG_SIZE,
    Credential,
    InvalidCredentials,
    keys_for,
    parse_docker_config,
)

_KINDS = ("auto", "docker", "containers")


class NotStored(HostError):
    """A login could not be stored or removed; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the login to ``host`` is kept: ``file``, or the program ``helper`` that the file names."""

    host: str
    key: str
    file: Path
    helper: str = ""

    def __str__(self) -> str:
        return f"docker-credential-{self.helper} (named by {self.file})" if self.helper else str(self.file)


def login_file(environment: Mapping[str, str], home: Path, kind: str) -> Path:
    """The file for logins. ``kind``: ``docker``, ``containers``, a path, or ``auto``: Docker's unless told otherwise.

    Raises:
        SpecError: ``kind`` is none of these.
    """
    explicit = environment.get("REGISTRY_AUTH_FILE", "")
    if kind == "auto":
        kind = "containers" if explicit else "docker"
    if kind == "docker":
        return Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if kind == "containers":
        if explicit:
            return Path(explicit)
        base = environment.get("XDG_RUNTIME_DIR") or environment.get("XDG_CONFIG_HOME") or home / ".config"
        return Path(base) / "containers" / "auth.json"
    if "/" not in kind:
        raise SpecError(f"registries.login-file: want {', '.join(_KINDS)} or a path, got {kind!r}")
    return Path(kind)


def place_for(host: str, file: Path) -> Place:
    """Where the login to ``host`` goes when ``file`` is the file for logins.

    Raises:
        InvalidCredentials: the file is malformed.
    """
    config = parse_docker_config(json.dumps(_read(file)).encode(), source=str(file))
    helper = next((config.helpers[key] for key in keys_for(host, "") if key in config.helpers), config.store)
    # podman knows Docker Hub by its name, Docker by the URL of its first API.
    key = HUB_KEY if host in HUB_HOSTS and file.name == "config.json" else host
    return Place(host=host, key=key, file=file, helper=helper)


def verify(registry: Registry) -> bool:
    """Whether the registry asked for the credentials it was made with, and took them.

    Raises:
        Unauthorized, Denied: it refuses them. UnavailableError: it does not answer.
    """
    call = Call(method="GET", url=registry.url("/v2/"), scopes=(), why="are these credentials taken")
    registry.request(call, (200,)).finish()
    return registry.asks


def store(place: Place, credential: Credential, runner: proc.Runner = proc.run) -> None:
    """Keep ``credential``; other entries and all that is not ours in the file stay.

    Raises:
        NotStored: the helper refused. InvalidCredentials: the file changed into something malformed.
    """
    if place.helper:
        server = HUB_KEY if place.host in HUB_HOSTS else place.host
        secret = {"ServerURL": server, "Username": credential.username, "Secret": credential.password}
        if credential.identity_token:
            secret |= {"Username": "<token>", "Secret": credential.identity_token}
        _tell_helper(place, "store", json.dumps(secret).encode(), runner)
        return
    word = base64.b64encode(f"{credential.username}:{credential.password}".encode()).decode()
    entry = {"identitytoken": credential.identity_token} if credential.identity_token else {"auth": word}
    _change(place.file, lambda auths: auths.update({place.key: entry}))


def erase(place: Place, runner: proc.Runner = proc.run) -> bool:
    """Forget the login; whether there was one, as far as the place tells.

    Raises:
        NotStored: the helper refused.
    """
    if place.helper:
        server = HUB_KEY if place.host in HUB_HOSTS else place.host
        _tell_helper(place, "erase", server.encode(), runner)
    keys = keys_for(place.host, "")
    if not any(key in _auths(_read(place.file), place.file) for key in keys):
        return bool(place.helper)

    def remove(auths: dict[str, Any]) -> None:
        for key in keys:
            auths.pop(key, None)

    _change(place.file, remove)
    return True


def _tell_helper(place: Place, what: str, data: bytes, runner: proc.Runner) -> None:
    program = f"docker-credential-{place.helper}"
    done = runner([program, what], stdin=data, check=False, timeout_s=HELPER_TIMEOUT_S)
    if done.status != 0:
        # Its words may repeat what it was given.
        raise NotStored(f"{program} {what}: exit status {done.status}", hint=f"Run {program} by hand to see why.")


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_CONFIG_SIZE + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidCredentials(f"{file}: {error.strerror}", hint="Make the file readable.") from error
    if len(data) > MAX_CONFIG_SIZE:
        raise InvalidCredentials(f"{file}: want at most {MAX_CONFIG_SIZE} bytes")
    if not data.strip():
        return {}
    try:
        return parse_json_object(data, source=str(file))
    except InvalidJson:
        raise InvalidCredentials(f"{file}: not a JSON object with single keys") from None


def _auths(document: dict[str, Any], file: Path) -> dict[str, Any]:
    auths = document.setdefault("auths", {})
    if not isinstance(auths, dict):
        raise InvalidCredentials(f"{file}: want auths that is an object")
    return auths


def _change(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the entries of ``file``: whole or not at all, one login at a time, readable by its owner only."""
    # The file may be a link into somebody's dotfiles: it stays one.
    file = Path(os.path.realpath(file))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(file.parent):
            document = _read(file)
            change(_auths(document, file))
            _replace(file, json.dumps(document, indent="\t").encode() + b"\n")
    except OSError as error:
        raise NotStored(
            f"{file}: {error.strerror}", hint="Make its folder writable, or set registries.login-file."
        ) from error


def _replace(file: Path, data: bytes) -> None:
    # mkstemp: 0600, whatever the umask.
    opened, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(opened, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
