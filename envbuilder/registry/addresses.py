"""Where a registry's word may lead us: origins, and the kinds of address behind their names.

A registry names other URLs: token realms, upload locations, redirects. A hostile one names
the cloud's metadata service or a neighbour's port (registry.md 7.8, 8.2). So an address is
judged after name resolution, and the connection goes to the very address that was judged.
"""

from __future__ import annotations

import enum
import functools
import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from envbuilder.registry.contact import down_error
from envbuilder.registry.errors import ForbiddenAddress
from envbuilder.registry.redact import redact_url

_PORTS = {"http": 80, "https": 443}
# Said by what is allowed: the range of what is not takes 4 ms to compile, at the start of each job.
_CONTROL = re.compile(r"[^\x21-\x7e]")
#: RFC 6052 and RFC 3056: IPv6 addresses that carry an IPv4 address which is what counts.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
#: Where clouds that don't use a link-local address tell a machine its secrets: Azure, Alibaba, Oracle, AWS by IPv6.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)


class Kind(enum.IntEnum):
    """How near to us an address is."""

    GLOBAL = 0
    PRIVATE = 1
    LOOPBACK = 2
    #: Link-local (metadata services), multicast, unspecified, reserved: never a registry's business.
    FORBIDDEN = 3


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Scheme, host and port: what a credential belongs to (RFC 6454)."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """The origin of an absolute http or https ``url``.

        Raises:
            ForbiddenAddress: another scheme, userinfo, no host, or characters that no URL has.
        """
        return cls(*_parts_of(url))

    @property
    def authority(self) -> str:
        """``host`` or ``host:port``, as a Host header has it."""
        return self._host if _PORTS[self.scheme] == self.port else f"{self._host}:{self.port}"

    @property
    def spellings(self) -> frozenset[str]:
        """What a configuration may call it: ``host``, or ``host:port``."""
        return frozenset({self._host, f"{self._host}:{self.port}"})

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@functools.lru_cache(4096)  # each range of a mounted image asks for the same few
def _parts_of(url: str) -> tuple[str, str, int]:
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:  # its text may hold a secret that stands where a port should
        raise ForbiddenAddress(f"URL: not one: {redact_url(url)}") from None
    if parts.scheme not in _PORTS or not parts.hostname or _CONTROL.search(url) or "\\" in url:
        raise ForbiddenAddress(f"URL: want http or https and a host, got {redact_url(url)}")
    if "@" in parts.netloc:
        raise ForbiddenAddress(f"URL: want none with a user in it, got {redact_url(url)}")
    host = parts.hostname.rstrip(".")
    if not host:
        raise ForbiddenAddress(f"URL: want a host, got {redact_url(url)}")
    return parts.scheme, host, port


def kind_of(address: str) -> Kind:
    """The kind of an IP ``address``."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    if ip.is_loopback:
        return Kind.LOOPBACK
    if ip in _METADATA or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved:
        return Kind.FORBIDDEN
    return Kind.GLOBAL if ip.is_global else Kind.PRIVATE


def addresses_of(host: str, port: int) -> list[str]:
    """The IP addresses of ``host``, in the order to try.

    Raises:
        RegistryDown: it has none, or name resolution does not answer.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise down_error(f"{host}: no address: {error}", error) from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_loopback_name(host: str) -> bool:
    """Whether ``host`` can only be this machine, without asking anyone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return kind_of(host.strip("[]")) is Kind.LOOPBACK
    except ValueError:
        return False


def allowed_addresses(host: str, port: int, nearest: Kind) -> list[str]:
    """The addresses of ``host`` that are no nearer than ``nearest``.

    Raises:
        ForbiddenAddress: there are none. RegistryDown: the name has no address at all.
    """
    found = addresses_of(host, port)
    if good := [address for address in found if kind_of(address) <= min(nearest, Kind.LOOPBACK)]:
        return good
    raise ForbiddenAddress(
        f"{host}:{port}: a registry points to the {kind_of(found[0]).name.lower()} address {found[0]}",
        hint="If you trust this, add the host to the trusted hosts of the registry settings.",
    )
