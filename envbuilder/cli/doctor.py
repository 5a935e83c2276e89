"""``envbuilder doctor [REF]``: what this host can do, which settings hold, and why."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Any

import click
import zstandard

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, table
from envbuilder.cli.registry_report import is_registry, registry_report
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.errors import EnvbuilderError
from envbuilder.lock.archives import known_archives
from envbuilder.lock.download import without_credentials
from envbuilder.lock.settings import read_python_indexes
from envbuilder.mount.host.probe import Capability, chosen_mode, probe
from envbuilder.mount.host.rootless import NoOwnUsers, become_root_of_our_own
from envbuilder.oci.reference import RegistryReference, parse_reference
from envbuilder.resolve.resolver import resolve

#: Programs that verbs start, and which; the container runtimes are tried by ``probe``.
_PROGRAMS = {"apt-get": "lock (Debian packages)", "gpgv": "lock (archive signatures)"}
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@click.command(name="doctor", epilog="Example: envbuilder doctor localhost:5000/env/ai:1")
@click.argument("reference", metavar="[REF]", default="", shell_complete=environment_names)
@click.option("--try-push", is_flag=True, help="Begin an upload in the repository of REF, and cancel it.")
@common
def command(app: App, reference: str, try_push: bool) -> Result:
    """Say what this host can do, how an image would be mounted, and where each setting comes from.

    With REF: also whether that image can be reached and how it would start. Where REF is in a registry, or is
    a registry's host alone: what that registry does, and who we are to it. Nothing is changed.
    """
    if is_registry(reference):
        return registry_report(app, reference, try_push=try_push)
    settings = [
        {"key": key, "value": without_credentials(setting.value), "source": setting.source}
        for key, setting in sorted(app.settings.by_key.items())
    ]
    node = app.mount_settings()
    with suppress(NoOwnUsers):  # what is tried is then what a run without root would find
        become_root_of_our_own()
    host = probe(node.state_dir, node.cache_dir)
    tools = (*_programs(), *_sources(app))
    mode = chosen_mode(host)
    value: dict[str, Any] = {
        "settings": settings,
        "host": [each.to_json() for each in host],
        "tools": [each.to_json() for each in tools],
        "mount": mode or None,
        "zstandard": zstandard.__version__,
        "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
    }
    parts = [
        table([("setting", "value", "from"), *((item["key"], item["value"], item["source"]) for item in settings)]),
        table([("this host", "", "why"), *(_row(each) for each in host)]),
        table([("needed by", "", "why"), *(_row(each) for each in tools)]),
        f"mount: {_MODES[mode]}",
    ]
    ok = True
    if reference and isinstance(parse_reference(reference), RegistryReference):
        about = registry_report(app, reference, try_push=try_push)
        value["registry"] = about.value
        parts.append(about.text)
    if reference:
        image = _image(app, reference, mode)
        ok = image.ok
        value["image"] = image.to_json()
        parts.append(f"{reference}: {image.why}")
    return Result("\n\n".join(parts), value, exit_code=0 if ok else 4)


_MODES = {
    "erofs": "lazily, EROFS over files that our FUSE daemon serves",
    "loop": "lazily, EROFS over loop devices (see above for why not from files)",
    "fuse": "lazily, file by file over FUSE (see above for why not EROFS)",
    "unpack": "by unpacking the whole image first (see above for what is missing)",
    "": "not at all: no root, and no user namespace",
}


def _row(each: Capability) -> tuple[str, str, str]:
    return each.name, "yes" if each.ok else "no", each.why.replace("\n", " ")


def _programs() -> list[Capability]:
    found = []
    for name, use in _PROGRAMS.items():
        path = shutil.which(name)
        found.append(Capability(name=use, ok=path is not None, why=path or f"{name} is not installed"))
    there = os.path.exists(_KEYRING)  # noqa: PTH110  a string
    why = _KEYRING if there else "apt-get install debian-archive-keyring"
    return [*found, Capability(name="lock (archive keys)", ok=there, why=why)]


def _sources(app: App) -> list[Capability]:
    indexes = read_python_indexes(os.environ, app.settings.section("indexes"), runner=None).all
    archives = known_archives(app.settings.section("mirrors"))
    found = {f"index {role}": url for role, url in indexes.items()}
    found |= {f"archive {role}": url for role, url in archives.items()}
    listed = [Capability(name=name, ok=True, why=without_credentials(url)) for name, url in found.items()]
    if not archives:
        listed.append(Capability(name="archive debian", ok=False, why="set mirrors.debian in envbuilder.toml"))
    return listed


def _image(app: App, reference: str, mode: str) -> Capability:
    try:
        source = open_source(app, reference)
        found = resolve(
            source.target,
            source.what,
            host_platform_of(),
            asked=reference,
            pinned=source.pinned,
            believes_indexes=app.switch("mount.layer-indexes"),
        )
    except EnvbuilderError as error:
        return Capability(name=reference, ok=False, why=str(error))
    how = (
        _MODES[mode] if found.start == "lazy" else f"{_MODES[mode]}, once it was pulled whole: it has no EROFS manifest"
    )
    return Capability(
        name=reference,
        ok=bool(mode),
        why=f"{found.pinned}, {human_size(found.size)} in {found.layers} layers; mounted {how}",
    )
