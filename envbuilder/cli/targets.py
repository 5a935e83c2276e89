"""References become targets: where an image is, how it is read, and copying it between places."""

from __future__ import annotations

import contextlib
import logging
import platform as host_platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envbuilder.cli.app import App
from envbuilder.cli.registries import registry_client
from envbuilder.cli.repositories import readable, repository
from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError, SpecError
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import (
    ArchiveReference,
    DaemonReference,
    EnvironmentName,
    InvalidReference,
    LayoutReference,
    Reference,
    RegistryReference,
    parse_reference,
)
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import ForgetfulTarget, NotFound, RangeTarget, SerialTarget, TaggingTarget, Target

_log = logging.getLogger("envbuilder.cli")

if TYPE_CHECKING:
    from envbuilder.store.movement import Progress


class NotBuilt(NotFound):
    """An environment is declared and locked, but the store has no image of that lock."""


class WrongVersion(SpecError):
    """A version of an environment was asked for that the project does not declare."""


@dataclass(frozen=True, slots=True)
class Source:
    """An image where it is: ``what`` is its index or manifest in ``target``; ``pinned`` names it by digest."""

    reference: Reference
    target: RangeTarget
    what: Descriptor
    pinned: str


def host_platform_of() -> Platform:
    """The platform of this host.

    Raises:
        SpecError: it is none that images are built for.
    """
    return Platform.parse(host_platform.machine())


def store_tag(name: str, version: str) -> str:
    """The tag under which the store keeps an environment's image."""
    return f"{name}-{version}"


def open_source(app: App, text: str, *, starting: bool = False) -> Source:
    """The image that ``text`` names, looked up now: tags are resolved once, here.

    starting: as of ``readable``.

    Raises:
        InvalidReference, NotFound, NotBuilt, StaleLock, UnavailableError: see the leaf.
    """
    reference = parse_reference(text)
    match reference:
        case EnvironmentName():
            return _open_environment(app, reference)
        case RegistryReference():
            target = readable(app, reference, starting=starting)
            what = target.lookup(str(reference.digest or reference.tag))
            if reference.digest and reference.tag and not starting:
                _warn_of_another(target, what, reference)
            return Source(reference, target, what, str(reference.at(what.digest)))
        case LayoutReference():
            layout = LayoutTarget(reference.directory)
            what = layout.lookup(reference.tag)
            return Source(reference, layout, what, f"oci:{reference.directory}:{what.digest}")
        case ArchiveReference():
            from envbuilder.store.archive import ArchiveTarget  # noqa: PLC0415  not in a start from a registry

            archive = ArchiveTarget(reference.file)
            what = archive.lookup(reference.tag)
            return Source(reference, archive, what, f"oci-archive:{reference.file}:{what.digest}")
        case DaemonReference():
            from envbuilder.cli.engine import open_in_engine  # noqa: PLC0415  not in a start from a registry

            saved, what = open_in_engine(app, reference)
            return Source(reference, saved, what, str(reference))


def _warn_of_another(target: Target, what: Descriptor, reference: RegistryReference) -> None:
    """Who reads ``name:tag@digest`` takes the tag for what it is; only the digest counts (containerd#6450)."""
    try:
        if isinstance(target, TaggingTarget) and target.is_tagged(what, reference.tag):
            return
        # Older registries don't say the digest to a HEAD.
        now = str(target.lookup(reference.tag).digest)
    except NotFound:
        now = "nothing"
    except EnvbuilderError as error:  # the tag is not needed
        _log.debug("%s: %s", reference, error)
        return
    if now != str(what.digest):
        _log.warning("%s: the tag names %s now; the digest counts", reference, now)


def _open_environment(app: App, reference: EnvironmentName) -> Source:
    # Who names no environment starts without what makes and checks locks.
    from envbuilder.cli.project import fresh_locks  # noqa: PLC0415  see above
    from envbuilder.image.inspect import open_image  # noqa: PLC0415  see above
    from envbuilder.lock.codec import digest as lock_digest  # noqa: PLC0415  see above

    project = app.need_project()
    locks = fresh_locks(project, reference.name, host_platform_of())
    lock = locks[-1]
    if reference.version and reference.version != lock.version:
        raise WrongVersion(
            f"{reference}: the project declares version {lock.version}", hint=f"Use {reference.name}@{lock.version}."
        )
    hint = f"Run: envbuilder build {reference.name}"
    try:
        store = LayoutTarget(app.store_directory)
        what = store.lookup(store_tag(lock.name, lock.version))
    except (NotFound, SpecError) as error:
        raise NotBuilt(f"{reference}: no image in the store {app.store_directory}", hint=hint) from error
    built_from = open_image(store, what, lock.platform).annotations.get(media_types.LOCK_DIGEST)
    if built_from != str(lock_digest(lock)):
        raise NotBuilt(f"{reference}: the image in the store is of another lock ({built_from})", hint=hint)
    return Source(reference, store, what, f"oci:{store.directory}:{what.digest}")


def writable(app: App, source: Source) -> Target:
    """The target of ``source``, to write beside its image.

    Raises:
        InvalidReference: an archive, which is one stream.
    """
    match source.reference:
        case RegistryReference():
            return repository(app, source.reference, registry_client(app), writable=True)
        case ArchiveReference():
            raise InvalidReference(
                f"{source.pinned}: an archive cannot be added to", hint="Pull it into a layout first (oci:DIR)."
            )
        case _:
            return source.target


def open_destination(app: App, text: str, *, near: Sequence[str] = ()) -> tuple[Target, str]:
    """Where ``text`` lets an image be written, and the tag to give it.

    near: names of images that have layers of it: a registry is asked to take those from its repositories of them.

    Raises:
        InvalidReference: an environment's name, or a digest, which is not chosen but follows from the bytes.
    """
    reference = parse_reference(text)
    match reference:
        case RegistryReference():
            if reference.digest:
                raise InvalidReference(f"{text}: a destination has a tag, its digest follows from the bytes")
            client = registry_client(app)
            return repository(app, reference, client, writable=True, mount_from=beside(reference, near)), reference.tag
        case LayoutReference():
            return LayoutTarget(reference.directory, create=True), reference.tag or "latest"
        case EnvironmentName():
            raise InvalidReference(
                f"{text}: an environment is made by build, not written to",
                hint="Name host/name:tag, oci:DIR or oci-archive:FILE.",
            )
        case DaemonReference():
            raise InvalidReference(
                f"{text}: an engine takes whole images", hint="Write: push REF docker-daemon:NAME:TAG."
            )
        case ArchiveReference():
            from envbuilder.store.archive import ArchiveWriter  # noqa: PLC0415  not in a start from a registry

            return ArchiveWriter(reference.file), reference.tag or "latest"


def look_at_destination(app: App, text: str) -> Target:
    """What is at the destination ``text`` now, to be asked and not written: nothing is made there.

    A registry is asked itself; what this machine remembers of it does not count.

    Raises:
        As open_destination.
    """
    reference = parse_reference(text)
    new = isinstance(reference, LayoutReference) and not (
        reference.directory.exists() and any(reference.directory.iterdir())
    )
    if new or isinstance(reference, ArchiveReference):
        from envbuilder.store.memory import MemoryTarget  # noqa: PLC0415  not in a start from a registry

        return MemoryTarget(name=text)
    target, _ = open_destination(app, text)
    if isinstance(target, ForgetfulTarget):
        target.forget()
    return target


def beside(reference: RegistryReference, images: Iterable[str]) -> tuple[str, ...]:
    """Repositories of ``images`` that are in the registry of ``reference``."""
    found = []
    for image in images:
        with contextlib.suppress(InvalidReference):
            other = parse_reference(image)
            if isinstance(other, RegistryReference) and other.host == reference.host:
                found.append(other.repository)
    return tuple(found)


def follow(
    source: Target,
    what: Descriptor,
    target: Target,
    platform: Platform | None = None,
    *,
    progress: Progress | None = None,
) -> int:
    """Let the start-up trace of ``what`` follow it to ``target``, where it can be written beside it; bytes moved.

    platform: whose, this host's unless it is said.
    """
    if isinstance(target, SerialTarget):
        return 0
    from envbuilder.image.choice import NoSuchPlatform, plain_manifest  # noqa: PLC0415  copies are no part of a start
    from envbuilder.mount.startup.newest import copy_trace  # noqa: PLC0415  see above

    with contextlib.suppress(NoSuchPlatform):
        plain = plain_manifest(source, what, platform or host_platform_of())
        return copy_trace(source, plain, target, progress=progress) or 0
    return 0
