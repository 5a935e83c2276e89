"""The images that environments are laid over: where they are, as a declaration or a lock names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.targets import Source, host_platform_of, open_source
from envbuilder.cli.transfer import open_docker_archive
from envbuilder.digest import Descriptor, Digest, canonical_json
from envbuilder.image.base import read_base
from envbuilder.image.inspect import OpenImage
from envbuilder.layer.build import default_jobs
from envbuilder.layer.plan import NotConfined
from envbuilder.lock.artifact_archive import ArchivedArtifacts
from envbuilder.lock.model import BaseImage, ForeignSystem, Lock
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.proc import Runner
from envbuilder.spec.project import environment_folder
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.mirrored import MirroredTarget
from envbuilder.store.target import RangeTarget, Target

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


def base_of(
    app: App, locks: Sequence[Lock], *, archive: ArchivedArtifacts | None = None, held: bool = False
) -> Callable[[], Target] | None:
    """What opens the place of the image below ``locks``; None where there is none.

    archive: where it is, in place of where the lock says. held: take the layers that the store has from there.
    """
    system, name = locks[0].system, locks[0].name
    if system is None or system.base is None:
        return None
    if archive is not None:
        return partial(archive.base, system.base)
    image = system.image

    def place() -> RangeTarget:
        return open_base(app, image, environment_folder(app.need_project(), name))[0].target

    if not held:
        return place
    return lambda: MirroredTarget(place(), [LayoutTarget(app.store_directory, create=True)])


def confined(app: App, locks: Sequence[Lock], place: Callable[[], Target] | None) -> Runner:
    """What starts the interpreter of the base of ``locks``: containers over the base's files, unpacked in the cache.

    place: opens where the base's layers are.

    Raises:
        NeedsRoot, NoRuntime, NotConfined: this host starts no such container. NotUnpacked: no room.
    """
    from envbuilder.mount.container.confined import Confined  # noqa: PLC0415  seldom needed
    from envbuilder.mount.container.runtime import find_runtime  # noqa: PLC0415  seldom needed
    from envbuilder.mount.mount import NeedsRoot  # noqa: PLC0415  seldom needed

    system = locks[0].system
    assert system is not None
    assert system.base is not None
    assert place is not None
    name = f"{locks[-1].name}: the base's interpreter compiles in a container"
    hint = "Build as root, or declare bytecode = false: then no image of it has compiled modules."
    if locks[0].platform != host_platform_of():
        raise NotConfined(f"{name}: it is for {locks[0].platform}, this host is {host_platform_of()}")
    if os.geteuid() != 0:
        raise NeedsRoot(f"{name}: want root", hint=hint)
    settings = app.mount_settings()
    with app.output.stage(f"{locks[-1].name}: base"):
        tree = unpacked_base(system.base, locks[0].platform, place(), app.cache_directory / "bases")
    return Confined(find_runtime(settings.state_dir, app.settings.get("run.runtime")), tree, locks[0].platform)


def unpacked_base(base: BaseImage, platform: Platform, source: Target, folder: Path) -> Path:
    """The files of ``base`` below ``folder``, unpacked now unless they are there.

    Raises:
        BadLayer, DigestMismatch, NotUnpacked, UnavailableError: see ``unpacked``.
    """
    from envbuilder.mount.unpack.layers import unpacked  # noqa: PLC0415  seldom needed

    return unpacked(_image(base, platform), source, folder, _quiet)


def _quiet(_done: int, _total: int) -> None:
    """No progress is shown."""


def _image(base: BaseImage, platform: Platform) -> OpenImage:
    """``base`` as unpacking takes it: its tree is named by its layers.

    That they are those of the manifest is what the lock says, and what one lock says is nothing to another.
    """
    layers = tuple(Descriptor(media_type=each.media_type, digest=each.digest, size=each.size) for each in base.layers)
    config = Descriptor(media_type=media_types.OCI_CONFIG, digest=base.config, size=0)
    what = Descriptor(media_type=media_types.OCI_MANIFEST, digest=base.manifest, size=0)
    name = Digest.of(canonical_json([[str(each.digest), str(each.diff_id)] for each in base.layers]))
    return OpenImage(
        root=what,
        descriptor=replace(what, digest=name),
        manifest=Manifest(config=config, layers=layers),
        config=ImageConfig(platform=platform, diff_ids=tuple(each.diff_id for each in base.layers)),
        annotations={},
        lazy=None,
    )
