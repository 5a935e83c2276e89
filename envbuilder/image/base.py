"""The image that an environment is laid over: fetched by digest, read without running anything, checked.

What is looked for: an interpreter of the declared version with its standard library, a glibc, and room for the prefix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import Descriptor
from envbuilder.errors import SpecError
from envbuilder.image.base_layer import build_base_layer
from envbuilder.image.base_tree import BaseTree
from envbuilder.image.choice import BrokenImage
from envbuilder.image.inspect import MAX_CONFIG_SIZE, OpenImage, open_image
from envbuilder.layer.base import BasePlan
from envbuilder.layer.build import find_layer
from envbuilder.layer.elf import inspect_elf
from envbuilder.layer.model import Layer
from envbuilder.layer.prefix import PREFIX
from envbuilder.lock.model import BaseImage, BaseLayer, ForeignSystem
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.store.copy import DEFAULT_JOBS
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.movement import Movement, Progress
from envbuilder.store.target import Target
from envbuilder.store.whole import fetch_whole

#: Bytes of an interpreter or a C library that are searched; with debug information CPython has 30 MB.
_MAX_BINARY = 256 << 20
_MAX_TEXT = 1 << 20
#: Characters of a line of history that are kept: whole Dockerfile heredocs stand there.
_MAX_BY = 500
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
#: e_machine of ELF (elf.h): what the interpreter must be.
_MACHINES = {"x86_64": 62, "aarch64": 183}
_GLIBC = re.compile(rb"GNU C Library [^\n]{0,200}?version (2\.[0-9]{1,3})")


class UnfitBase(SpecError):
    """The image of ``base.image`` is not what the declaration says, or nothing that Python packages can lie over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBase:
    """An image as the lock has it, and the version of its glibc."""

    system: ForeignSystem
    glibc: str


def read_base(
    source: Target,
    what: Descriptor,
    platform: Platform,
    *,
    image: str,
    python: str,
    store: LayoutTarget,
    cache: Path,
    helpers: int = 0,
    progress: Progress | None = None,
) -> ReadBase:
    """The image ``what`` of ``source``; its layers, and their devices, are in ``store`` afterwards.

    image: how the lock calls it, by digest. python: its interpreter must be of this version, "3.12".

    Raises:
        UnfitBase: says what is missing. NoSuchPlatform, BrokenImage, BadLayer, DigestMismatch: see the leaf.
    """
    opened = open_image(source, what, platform)
    if media_types.LOCK_DIGEST in opened.annotations:
        raise UnfitBase(
            f"base {image}: envbuilder made it of a lock", hint="Write extends = ... to go on from an environment."
        )
    layers = tuple(_layers(source, opened))
    plans = [BasePlan(id=f"base/{number}", layer=layer) for number, layer in enumerate(layers)]
    tree = BaseTree(hold_base(plans, store, lambda: source, cache=cache, helpers=helpers, progress=progress), store)
    config = opened.config
    where, version = _interpreter(tree, python, platform, config.env.get("PATH", ""), image)
    _check_room(tree, image)
    base = BaseImage(
        manifest=opened.descriptor.digest,
        config=opened.manifest.config.digest,
        python=where,
        layers=layers,
        env=tuple(config.env.items()),
        labels=tuple(config.labels.items()),
        entrypoint=config.entrypoint,
        working_dir="" if config.working_dir == "/" else config.working_dir,
        user=config.user,
    )
    system = ForeignSystem(name=_name(tree), interpreter=version, image=image, base=base)
    return ReadBase(system=system, glibc=_glibc(tree, platform, image))


def hold_base(
    plans: Sequence[BasePlan],
    store: LayoutTarget,
    source: Callable[[], Target],
    *,
    cache: Path,
    helpers: int = 0,
    progress: Progress | None = None,
    finished: Callable[[Layer, bool], None] = lambda _layer, _reused: None,
) -> list[Layer]:
    """The layer of each of ``plans``, in ``store``.

    source: called only where something is missing. finished: told of each, and whether it was there.

    Raises:
        NotFound: ``source`` has it not. BadLayer, DigestMismatch: it is not what the image names.
    """
    known = {each.id: find_layer(each, store) for each in plans}
    if missing := [each.blob for each in plans if known[each.id] is None and not store.has(each.blob)]:
        Movement(source(), store, progress).all_of(missing, DEFAULT_JOBS)
    layers = []
    for each in plans:
        found = known[each.id]
        layer = found or build_base_layer(each, store, cache=cache, helpers=helpers)
        layers.append(layer)
        finished(layer, found is not None)
    return layers


def _layers(source: Target, opened: OpenImage) -> Iterator[BaseLayer]:
    by = _history(source, opened)
    for number, (layer, diff_id) in enumerate(zip(opened.manifest.layers, opened.config.diff_ids, strict=True)):
        yield BaseLayer(
            digest=layer.digest, size=layer.size, media_type=layer.media_type, diff_id=diff_id, by=by[number]
        )


def _history(source: Target, opened: OpenImage) -> list[str]:
    """What made each layer, as the config has it; nothing is said where its lines are not those of the layers."""
    data = fetch_whole(source, opened.manifest.config, MAX_CONFIG_SIZE, BrokenImage)
    lines: Any = json.loads(data).get("history")
    lines = lines if isinstance(lines, list) else []
    said = [
        str(line.get("created_by") or line.get("comment") or "")[:_MAX_BY]
        for line in lines
        if isinstance(line, dict) and not line.get("empty_layer")
    ]
    said = said if len(said) == len(opened.manifest.layers) else [""] * len(opened.manifest.layers)
    return [text or "base image" for text in said]


def _name(tree: BaseTree) -> str:
    """What /etc/os-release calls the system: ``ubuntu-24.04``; os-release(5)."""
    data = tree.read("etc/os-release", _MAX_TEXT) or tree.read("usr/lib/os-release", _MAX_TEXT) or b""
    pairs = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines())
    found = {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
    words = [found.get("ID", ""), found.get("VERSION_ID", "")]
    return re.sub(r"[^a-z0-9.-]+", "-", "-".join(filter(None, words)).lower()).strip("-.") or "linux"


def _interpreter(tree: BaseTree, python: str, platform: Platform, path: str, image: str) -> tuple[str, str]:
    """Absolute path, without links, and full version of the first interpreter of ``python`` on ``path``."""
    others: list[str] = []
    folders = [folder for folder in f"{path}:{_DEFAULT_PATH}".split(":") if folder.startswith("/")]
    for name in (f"python{python}", "python3", "python"):
        for folder in dict.fromkeys(folders):
            found = tree.find(f"{folder}/{name}")
            if found is None:
                continue
            where = found[0]
            if not where.isprintable():
                continue  # pyvenv.cfg has it on a line
            data = tree.read(where, _MAX_BINARY) or b""
            elf = inspect_elf(data)
            if elf is None:
                continue
            if elf.machine != _MACHINES[platform.machine]:
                raise UnfitBase(f"base {image}: /{where} is not for {platform}")
            version = _version(tree, where, data, python, platform)
            if not version:
                others.append(f"/{where}")
                continue
            home = where.rpartition("/")[0].rpartition("/")[0]
            library = f"{home}/lib/python{python}/os.py"
            if tree.find(library) is None:
                raise UnfitBase(f"base {image}: /{where} is there without its standard library: no /{library}")
            return f"/{where}", version
    seen = f"; no Python {python}: {', '.join(dict.fromkeys(others))}" if others else ""
    raise UnfitBase(
        f"base {image}: want Python {python} on PATH, got none{seen}",
        hint="Put it into the image, or its folder on the image's PATH.",
    )


def _version(tree: BaseTree, where: str, data: bytes, python: str, platform: Platform) -> str:
    """The full version that a CPython says of itself: a string of its binary, or of the libpython that it loads."""
    # PY_VERSION ends a string, which linkers may merge into a longer one with that end.
    known = re.compile(rb"(?<![0-9.])(" + re.escape(python.encode()) + rb"\.[0-9]{1,3})(?:a|b|rc)?[0-9]*\+?\0")
    versions = {match[1] for match in known.finditer(data)}
    if not versions:
        home = where.rpartition("/")[0].rpartition("/")[0]
        name = f"libpython{python}.so.1.0"
        for folder in (f"{home}/lib", f"usr/lib/{platform.multiarch}", "usr/local/lib", "usr/lib64", "usr/lib"):
            library = tree.read(f"{folder}/{name}", _MAX_BINARY) or b""
            versions |= {match[1] for match in known.finditer(library)}
    return versions.pop().decode() if len(versions) == 1 else ""


def _glibc(tree: BaseTree, platform: Platform, image: str) -> str:
    for folder in (
        f"lib/{platform.multiarch}",
        f"usr/lib/{platform.multiarch}",
        "lib64",
        "usr/lib64",
        "lib",
        "usr/lib",
    ):
        data = tree.read(f"{folder}/libc.so.6", _MAX_BINARY)
        if data and (match := _GLIBC.search(data)):
            return match[1].decode()
    raise UnfitBase(
        f"base {image}: want a glibc (libc.so.6), got none", hint="Wheels of an index are for glibc; musl runs none."
    )


def _check_room(tree: BaseTree, image: str) -> None:
    """Check that the prefix is free, and that the way to it leads through directories."""
    parts = PREFIX.split("/")
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        found = tree.find(path)
        if found is None:
            return
        if found[0] != path or not found[1].is_directory:
            raise UnfitBase(f"base {image}: /{path} is no directory: the packages' prefix /{PREFIX} cannot lie there")
    raise UnfitBase(f"base {image}: it has /{PREFIX}, where the packages of an environment lie")
