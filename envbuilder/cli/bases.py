"""The images that environments are laid over: where they are, as a declaration or a lock names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.targets import Source, open_source
from envbuilder.cli.transfer import open_docker_archive
from envbuilder.digest import Descriptor
from envbuilder.image.base import read_base
from envbuilder.layer.build import default_jobs
from envbuilder.lock.model import ForeignSystem, Lock
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.spec.project import environment_folder
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target

#: What stands before a path; the path is below, or beside, the environment's folder.
_PLACES = ("oci:", "oci-archive:", "docker-archive:")


def open_base(app: App, image: str, folder: Path) -> tuple[Source, str]:
    """The image that a declaration or a lock calls ``image``, and its name by digest.

    folder: of the environment; relative paths begin there, and stay relative in the name.

    Raises:
        NotFound, NotALayout, UnavailableError, SpecError: see ``open_source``.
    """
    place = next((each for each in _PLACES if image.startswith(each)), "")
    if not place:
        source = open_source(app, image)
        assert isinstance(source.reference, RegistryReference)
        return source, source.pinned
    path = image.removeprefix(place)
    there = f"{place}{folder / path}"
    source = open_docker_archive(there) if place == "docker-archive:" else open_source(app, there)
    name = f"{source.pinned.removeprefix(place)}"
    begin = f"{folder}/"
    kept = name.removeprefix(begin) if not Path(path).is_absolute() else name
    return replace(source, pinned=f"{place}{kept}"), f"{place}{kept}"


def base_reader(app: App, name: str) -> Callable[[str, str, Platform], tuple[ForeignSystem, str]]:
    """What reads the image that environment ``name`` is laid over, for ``Machine.base_of``; it fills the store."""

    def read(image: str, python: str, platform: Platform) -> tuple[ForeignSystem, str]:
        source, pinned = open_base(app, image, environment_folder(app.need_project(), name))
        store = LayoutTarget(app.store_directory, create=True)
        with app.output.stage(f"{name}: base") as meter:

            def progress(_blob: Descriptor, size: int) -> None:
                meter.advance(size)

            found = read_base(
                source.target,
                source.what,
                platform,
                image=pinned,
                python=python,
                store=store,
                cache=app.cache_directory,
                helpers=default_jobs(),
                progress=progress,
            )
        return found.system, found.glibc

    return read


def base_of(app: App, locks: Sequence[Lock]) -> Callable[[], Target] | None:
    """What opens the place of the image below ``locks``; None where there is none."""
    system, name = locks[0].system, locks[0].name
    if system is None or system.base is None:
        return None
    image = system.image
    return lambda: open_base(app, image, environment_folder(app.need_project(), name))[0].target
