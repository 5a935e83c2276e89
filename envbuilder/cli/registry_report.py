"""What ``doctor`` says about a registry: who we are to it, how it is reached, what it does."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from envbuilder.cli.app import App
from envbuilder.cli.output import Result, table
from envbuilder.cli.registries import Mirrors, check_host, http_settings, look_up, mirrors_of, registry_client
from envbuilder.cli.repositories import capabilities, repository
from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError
from envbuilder.lock.download import without_credentials
from envbuilder.oci.reference import RegistryReference, parse_reference
from envbuilder.registry.addresses import Origin
from envbuilder.registry.diagnosis import Diagnosis, Finding, http_library
from envbuilder.registry.proxies import is_exempt, proxy_for


def is_registry(text: str) -> bool:
    """Whether ``text`` is the host of a registry and no reference."""
    host = text.partition(":")[0]
    return (
        bool(text)
        and "/" not in text
        and not text.startswith("oci")
        and (host == "localhost" or "." in host or text.rpartition(":")[2].isdecimal())
    )


def registry_report(app: App, text: str, *, try_push: bool) -> Result:
    """The part of ``doctor`` about the registry of ``text``, a host or a reference."""
    reference = None if is_registry(text) else parse_reference(text)
    assert reference is None or isinstance(reference, RegistryReference)
    host = reference.host if reference else check_host(text)
    findings = [*_machine(app, host), http_library()]
    with registry_client(app) as client:
        diagnosis = Diagnosis(registry=client.registry(host), capabilities=capabilities(app), now_s=time.time)
        diagnosis.host()
        if reference:
            what: Descriptor | None = None
            try:
                what = repository(app, reference, client).lookup(str(reference.digest or reference.tag))
            except EnvbuilderError as error:
                findings.append(Finding(name="image", value=str(error), ok=False))
            diagnosis.repository(reference.repository, what, try_push=try_push)
    findings += diagnosis.found
    rows = [(each.name, {True: "yes", False: "no", None: ""}[each.ok], each.value) for each in findings]
    value: dict[str, Any] = {each.name: {"value": each.value, "ok": each.ok} for each in findings}
    bad = any(each.ok is False for each in findings)
    return Result(table([(f"registry {host}", "ok", "what was found"), *rows]), value, exit_code=4 if bad else 0)


def _machine(app: App, host: str) -> list[Finding]:
    """Who we are to ``host``, and what stands between us, as this machine is configured."""
    found = look_up(app, host)
    who = (
        f"{found.credential.username or 'no name'}, {found.credential.kind}, from {found.source}"
        if found
        else "anonymous"
    )
    settings = http_settings(app.settings, os.environ)
    scheme = settings.scheme_of(host)
    ca = str(settings.ca_file) if settings.ca_file else "the system's"
    return [
        Finding(name="credentials", value=who),
        Finding(name="scheme", value=scheme),
        Finding(name="proxy", value=_proxy(settings.proxies, Origin.of(f"{scheme}://{host}/"))),
        Finding(name="mirrors", value=_mirrors(mirrors_of(app.settings, host))),
        Finding(name="trusted CAs", value=ca),
    ]


def _proxy(variables: Mapping[str, str], origin: Origin) -> str:
    proxies = {kind.lower().removesuffix("_proxy"): url for kind, url in variables.items()}
    if proxy := proxy_for(proxies, origin):
        return without_credentials(proxy)
    if not proxies.get(origin.scheme):
        return f"none: {origin.scheme}_proxy is not set"
    return "none: no_proxy names it" if is_exempt(origin, proxies.get("no", "")) else "none: it is this machine"


def _mirrors(mirrors: Mirrors) -> str:
    if not mirrors.places:
        return "none"
    places = ", ".join(f"{host}/{prefix}" if prefix else host for host, prefix in mirrors.places)
    return f"{places}, asked before it; what a tag names: {mirrors.tags}"
