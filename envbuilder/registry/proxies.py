"""Which proxy a request goes through: the variables http_proxy, https_proxy and no_proxy, as values.

There is no standard; this is what curl and Go agree on: lower case wins over upper case, ``no_proxy``
lists names with all below them, addresses, networks (10.0.0.0/8) and ``*``, each with an optional port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from envbuilder.registry.addresses import Origin, is_loopback_name

_KINDS = ("http", "https", "no")


def proxies_of(environment: Mapping[str, str]) -> dict[str, str]:
    """``http``, ``https`` and ``no`` of an environment; what is empty is absent."""
    found = {}
    for kind in _KINDS:
        name = f"{kind}_proxy"
        # In a CGI program HTTP_PROXY is a header of the client (httpoxy, CVE-2016-5385).
        upper = "" if kind == "http" and "REQUEST_METHOD" in environment else environment.get(name.upper(), "")
        if text := environment.get(name) or upper:
            found[kind] = text
    return found


def proxy_for(proxies: Mapping[str, str], origin: Origin) -> str:
    """The URL of the proxy to ``origin``, or "": this machine is never reached through one."""
    proxy = proxies.get(origin.scheme, "")
    if not proxy or is_loopback_name(origin.host) or is_exempt(origin, proxies.get("no", "")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def is_exempt(origin: Origin, no_proxy: str) -> bool:
    """Whether ``no_proxy`` names ``origin``."""
    return any(_names(entry.strip().lower(), origin) for entry in no_proxy.split(",") if entry.strip())


def _names(entry: str, origin: Origin) -> bool:
    if entry == "*":
        return True
    name, port = _split(entry)
    if port and port != str(origin.port):
        return False
    try:
        address = ipaddress.ip_address(origin.host)
    except ValueError:
        domain = name.removeprefix("*").removeprefix(".")
        return bool(domain) and (origin.host == domain or origin.host.endswith("." + domain))
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False


def _split(entry: str) -> tuple[str, str]:
    """Name and port of ``name``, ``name:port``, ``::1``, ``[::1]`` or ``[::1]:port``."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.rpartition(":")
    return (name, port) if name and ":" not in name and port.isdecimal() else (entry, "")
