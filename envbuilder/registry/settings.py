"""How this machine talks to registries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.registry.addresses import Origin, is_loopback_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCertificates:
    """A CA to trust for one host besides the system's, and who we are to it; a key may be in its certificate's file."""

    ca_file: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How this machine talks to registries; the CLI fills it from files, environment and flags.

    A host is ``host`` (any port) or ``host:port``.
    plain_hosts: speak http although they are not this machine.
    unverified_hosts: https whose certificate is not checked.
    trusted_hosts: hosts that registries may name as token realm or redirect although they are private.
    certificates: by host. certificate_dirs: ``DIR/host[:port]/{*.crt,*.cert,*.key}``, as Docker and podman have them.
    ca_file: certificates to trust besides the system's, for every host. proxies: ``http``, ``https``, ``no``.
    """

    plain_hosts: frozenset[str] = frozenset()
    unverified_hosts: frozenset[str] = frozenset()
    trusted_hosts: frozenset[str] = frozenset()
    certificates: Mapping[str, HostCertificates] = field(default_factory=dict, hash=False)
    certificate_dirs: tuple[Path, ...] = (Path("/etc/containers/certs.d"), Path("/etc/docker/certs.d"))
    ca_file: Path | None = None
    proxies: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    connect_timeout_s: float = 10.0
    #: Seconds without a byte in either direction.
    idle_timeout_s: float = 60.0
    #: Seconds that one request may wait in all, between its attempts, Retry-After included.
    retry_budget_s: float = 120.0
    #: A registry that moves an upload into S3 answers only when it is done; Docker's own limit is longer.
    upload_answer_timeout_s: float = 900.0
    user_agent: str = "envbuilder"

    def scheme_of(self, host: str) -> str:
        """``http`` for this machine and for hosts that were named, else ``https``; there is no fallback."""
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        plain_http = host in self.plain_hosts or name in self.plain_hosts or is_loopback_name(name)
        return "http" if plain_http else "https"

    def trusts(self, origin: Origin) -> bool:
        """Whether the user lets registries lead to ``origin``."""
        return not self.trusted_hosts.isdisjoint(origin.spellings)
