"""How this machine's configuration says to talk to registries: settings, proxies, certificates, credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.cli.app import App
from envbuilder.cli.settings import Settings
from envbuilder.errors import SpecError
from envbuilder.proc import run
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import ConfigCredentials, CredentialSource, Found, credential_files
from envbuilder.registry.proxies import proxies_of
from envbuilder.registry.settings import HostCertificates, HttpSettings
from envbuilder.store.mirrored import TAG_SOURCES, TagSource

if TYPE_CHECKING:
    from envbuilder.registry.logins import Place

_HOST = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?")
#: Of repositories, as a mirror of several registries has it (distribution-spec: names).
_PREFIX = re.compile(r"[a-z0-9._/-]*")
_SECONDS = re.compile(r"[0-9]{1,6}(?:\.[0-9]+)?")
#: Seconds for a connection to a mirror, and without a byte from it: the origin is there too.
_MIRROR_CONNECT_S, _MIRROR_IDLE_S = 3.0, 15.0


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Mirrors of one registry: host, and what stands before a repository's name there, in the order they are asked.

    namespace: the registry that they are told with each request, or "".
    """

    places: tuple[tuple[str, str], ...]
    tags: TagSource
    namespace: str = ""


class _MirrorClient(RegistryClient):
    """The name under which an App keeps it."""


def registry_client(app: App, credentials: CredentialSource | None = None) -> RegistryClient:
    """The registry client of this machine's configuration: one for all, or one of its own for other ``credentials``.

    Both ends of a copy within a registry so share its tokens, connections and pace.

    Raises:
        SpecError: a setting of ``registries`` is not what it may be.
    """
    if credentials is not None:
        return RegistryClient(http_settings(app.settings, os.environ), credentials)
    client = app.shared.get(RegistryClient)
    if not isinstance(client, RegistryClient):
        client = RegistryClient(http_settings(app.settings, os.environ), _credentials(app, os.environ))
        app.shared[RegistryClient] = client
    return client


def mirror_client(app: App) -> RegistryClient:
    """The client for mirrors: as this machine talks to registries, but soon tired, as there is the origin.

    Raises:
        SpecError: see ``registry_client``.
    """
    client = app.shared.get(_MirrorClient)
    if not isinstance(client, RegistryClient):
        told = http_settings(app.settings, os.environ)
        settings = replace(
            told,
            connect_timeout_s=min(told.connect_timeout_s, _MIRROR_CONNECT_S),
            idle_timeout_s=min(told.idle_timeout_s, _MIRROR_IDLE_S),
            retry_budget_s=0.0,
        )
        client = RegistryClient(settings, _credentials(app, os.environ))
        app.shared[_MirrorClient] = client
    return client


def mirrors_of(settings: Settings, host: str) -> Mirrors:
    """Who is asked for the images of ``host`` before it is.

    Raises:
        SpecError: a setting of its mirrors is not what it may be.
    """
    values = _by_host(settings).get(host, {})
    tags = values.get("mirror-tags", "origin")
    if tags not in TAG_SOURCES:
        raise SpecError(f"registries.{host}.mirror-tags: want {', '.join(TAG_SOURCES)}, got {tags!r}")
    told = values.get("mirror-ns", "off")
    if told not in ("on", "off"):
        raise SpecError(f"registries.{host}.mirror-ns: want on or off, got {told!r}")
    places = []
    for text in filter(None, (each.strip() for each in values.get("mirrors", "").split(","))):
        name, _, prefix = text.rstrip("/").partition("/")
        if not _HOST.fullmatch(name) or not _PREFIX.fullmatch(prefix):
            raise SpecError(
                f'registries."{host}".mirrors: want HOST or HOST/PREFIX, got {text!r}',
                hint="Leave out http:// or https:// and the image; plain HTTP is for registries.insecure.",
            )
        places.append((name.lower(), prefix))
    namespace = "docker.io" if host == "index.docker.io" else host
    return Mirrors(tuple(places), TAG_SOURCES[TAG_SOURCES.index(tags)], namespace if told == "on" else "")


def look_up(app: App, host: str) -> Found | None:
    """Who this machine is to ``host``, and where that is written; None: anonymous."""
    from envbuilder.registry.helper import HelperCredentials  # noqa: PLC0415  few machines have such programs

    programs = HelperCredentials(_programs(app.settings), runner=run)
    return programs.look_up(host) if programs.command_for(host) else _files(os.environ).look_up(host)


def login_place(app: App, host: str) -> Place:
    """Where the login to ``host`` is kept.

    Raises:
        SpecError: the setting, or the file.
    """
    from envbuilder.registry.logins import login_file, place_for  # noqa: PLC0415  only login and logout

    return place_for(host, login_file(os.environ, _home(os.environ), app.settings.get("registries.login-file")))


def check_host(text: str) -> str:
    """``text`` as the name of a registry, ``host`` or ``host:port``.

    Raises:
        SpecError: it is none.
    """
    if not _HOST.fullmatch(text):
        raise SpecError(
            f"registry: want host or host:port, got {text!r}", hint="Leave out https:// and the repository."
        )
    return text.lower()


def http_settings(settings: Settings, environment: Mapping[str, str]) -> HttpSettings:
    """What ``settings`` and the proxy variables say.

    Raises:
        SpecError: a value is not what it may be.
    """
    ca_file = settings.get("registries.ca-file") or environment.get("SSL_CERT_FILE")
    return HttpSettings(
        plain_hosts=_hosts(settings, "insecure"),
        unverified_hosts=_hosts(settings, "unverified"),
        trusted_hosts=_hosts(settings, "trusted"),
        certificates={
            host: HostCertificates(
                ca_file=_file(values, "ca-file"),
                client_cert=_file(values, "client-cert"),
                client_key=_file(values, "client-key"),
            )
            for host, values in _by_host(settings).items()
        },
        ca_file=Path(ca_file) if ca_file else None,
        proxies=proxies_of(environment),
        connect_timeout_s=_seconds(settings, "connect-timeout-s"),
        idle_timeout_s=_seconds(settings, "idle-timeout-s"),
        retry_budget_s=_seconds(settings, "retry-budget-s"),
    )


def _credentials(app: App, environment: Mapping[str, str]) -> CredentialSource:
    files, programs = _files(environment), _programs(app.settings)
    if not programs:
        return files
    from envbuilder.registry.helper import HelperCredentials  # noqa: PLC0415  see above

    return HelperCredentials(programs, files, runner=run)


def _files(environment: Mapping[str, str]) -> ConfigCredentials:
    inline = environment.get("DOCKER_AUTH_CONFIG", "")
    return ConfigCredentials(credential_files(environment, _home(environment)), inline=inline, runner=run)


def _programs(settings: Settings) -> dict[str, tuple[str, ...]]:
    found = {}
    for host, values in _by_host(settings).items():
        if text := values.get("credential-helper", ""):
            import shlex  # noqa: PLC0415  few machines have such programs

            try:
                found[host] = tuple(shlex.split(text))
            except ValueError as error:
                raise SpecError(f"registries.{host}.credential-helper: {error}", hint="Mend its quotes.") from error
    return found


def _by_host(settings: Settings) -> dict[str, dict[str, str]]:
    """Settings of ``[registries."HOST"]`` tables."""
    found: dict[str, dict[str, str]] = {}
    for key, value in settings.section("registries").items():
        host, _, name = key.rpartition(".")
        if host:
            found.setdefault(check_host(host), {})[name] = value
    return found


def _hosts(settings: Settings, name: str) -> frozenset[str]:
    return frozenset(host.strip().lower() for host in settings.get(f"registries.{name}").split(",") if host.strip())


def _file(values: Mapping[str, str], name: str) -> Path | None:
    return Path(values[name]).expanduser() if values.get(name) else None


def _seconds(settings: Settings, name: str) -> float:
    text = settings.get(f"registries.{name}")
    if not _SECONDS.fullmatch(text) or not float(text):
        raise SpecError(f"registries.{name}: want seconds, got {text!r}")
    return float(text)


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME", "/"))
