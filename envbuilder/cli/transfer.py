"""Copying an image between places: what ``push``, ``pull`` and ``copy`` have in common.

What only some copies need is imported by those: imports are most of what a small push costs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.output import Result, human_size
from envbuilder.cli.registries import registry_client
from envbuilder.cli.repositories import repository
from envbuilder.cli.targets import Source, beside, follow, host_platform_of, open_destination, open_source
from envbuilder.cli.trust import check_trust
from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import SpecError
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import DaemonReference, EnvironmentName, RegistryReference, parse_reference
from envbuilder.spec.project import lineage
from envbuilder.store.copy import CopyPlan, copy, copy_plan
from envbuilder.store.files import PendingFile
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import referrers
from envbuilder.store.target import SerialTarget, Target

_DOCKER_ARCHIVE = "docker-archive:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a verb was asked to copy. ``what``: the verb, for people. ``destination``: "" for the store.

    platform: only its image, not the whole index. referrers: signatures, SBOMs and the like too.
    mount_from: repositories of the destination's registry that may hold the layers.
    trusted: the source must meet this machine's trust policy, if it has one. flavour: make it that first, or "".
    """

    what: str
    reference: str
    destination: str = ""
    platform: Platform | None = None
    referrers: bool = False
    mount_from: Sequence[str] = ()
    trusted: bool = False
    flavour: str = ""
    dry_run: bool = False


def transfer(app: App, asked: Transfer) -> Result:
    """Copy as ``asked``; the Result of the verb."""
    started = time.monotonic()
    source = _source(app, asked.reference)
    if asked.trusted:
        # Signed is what the reference names: the whole index, before one platform is taken of it.
        check_trust(app, source)
    if asked.flavour:
        if asked.dry_run:
            raise SpecError("--dry-run: what a flavour's bytes are is known only when they are made")
        from envbuilder.cli.flavoured import as_flavour  # noqa: PLC0415  seldom needed

        tag = f"_{asked.flavour}-{source.what.digest.hex[:12]}"
        source, _ = as_flavour(app, source, asked.flavour, asked.platform, tag=tag)
    elif asked.platform is not None:
        source = _one_platform(source, asked.platform)
    if asked.destination.startswith(_DOCKER_ARCHIVE):
        return _to_docker_archive(app, source, asked)
    if asked.destination and isinstance(engine := parse_reference(asked.destination), DaemonReference):
        from envbuilder.cli.engine import load_into_engine  # noqa: PLC0415  seldom needed

        platform = asked.platform or host_platform_of()
        return load_into_engine(app, source.target, source.what, platform, engine, dry_run=asked.dry_run)
    target, tag = _destination(app, asked, source)
    plan = copy_plan(source.target, source.what, target, tag=tag, ask=asked.dry_run)
    value = _value(asked, source, target, plan)
    more_moved = ""
    if asked.dry_run:
        moved, done, were = (len(plan.blobs) + len(plan.manifests), plan.size), "to move", "are"
        skipped = (len(plan.present), sum(blob.size for blob in plan.present))
    else:
        there: list[int] = []
        with app.output.stage(asked.what, plan.size) as meter:

            def progress(_blob: Descriptor, size: int) -> None:
                meter.advance(size)

            def found(blob: Descriptor) -> None:
                there.append(blob.size)
                meter.total(plan.size - sum(there))

            report = copy(
                source.target, source.what, target, tag=tag, plan=plan, progress=progress, found=found, finish=False
            )
            if asked.referrers:
                from envbuilder.registry.beside import copy_beside  # noqa: PLC0415  brings cryptography along
                from envbuilder.store.copy_referrers import copy_referrers  # noqa: PLC0415  seldom needed

                more = copy_referrers(source.target, source.what, target, progress=progress)
                beside, beside_bytes = copy_beside(source.target, source.what, target, progress=progress)
                value["referrers"] = [str(each.digest) for each in (*more.referrers, *beside)]
                value["referrers_bytes"] = more.copied_bytes + beside_bytes
            else:
                traced = follow(source.target, source.what, target, progress=progress)
                value["trace_bytes"] = traced
                more_moved = f", its start-up trace moved ({human_size(traced)})" if traced else ""
                _say_what_stays(app, source)
            if isinstance(target, SerialTarget):
                target.finish(source.what)
        value |= {
            "copied": report.copied,
            "copied_bytes": report.copied_bytes,
            "skipped": report.skipped,
            "skipped_bytes": report.skipped_bytes,
        }
        moved, done, were = (report.copied, report.copied_bytes), "moved", "were"
        skipped = (report.skipped, report.skipped_bytes)
    app.output.note(
        f"{asked.what}: {moved[0]} blobs {done} ({human_size(moved[1])}), "
        f"{skipped[0]} {were} there ({human_size(skipped[1])}){more_moved}"
    )
    value["seconds"] = round(time.monotonic() - started, 3)
    return Result(str(source.what.digest), value)


def _say_what_stays(app: App, source: Source) -> None:
    """A store is asked at no cost; a registry would be asked once more for a word of advice."""
    if not isinstance(source.target, LayoutTarget) or not (found := referrers(source.target, source.what)):
        return
    from envbuilder.image.attached import KINDS  # noqa: PLC0415  brings the lock's model along

    if any(each.artifact_type in KINDS for each in found):
        app.output.note("its locks, SBOMs and provenance stay here: --referrers sends them too")


def _value(asked: Transfer, source: Source, target: Target, plan: CopyPlan) -> dict[str, object]:
    return {
        "reference": asked.reference,
        "destination": asked.destination or target.name,
        "digest": str(source.what.digest),
        "pinned": _pinned(asked.destination, target, source.what.digest),
        "copied": len(plan.blobs) + len(plan.manifests),
        "copied_bytes": plan.size,
        "skipped": len(plan.present),
        "skipped_bytes": sum(blob.size for blob in plan.present),
        "dry_run": asked.dry_run,
    }


def _source(app: App, text: str) -> Source:
    return open_docker_archive(text) if text.startswith(_DOCKER_ARCHIVE) else open_source(app, text)


def open_docker_archive(text: str) -> Source:
    """The image that ``text`` names: ``docker-archive:FILE[:NAME:TAG]``, or a digest behind the file.

    Raises:
        SpecError, BadArchive, NotFound: there is none.
    """
    from envbuilder.custom.docker_archive import DockerArchiveTarget  # noqa: PLC0415  seldom needed

    file, name = _file_and_name(text)
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SpecError(f"{text}: {error.strerror}", hint="Name what docker save or podman save wrote.") from error
    target = DockerArchiveTarget(fd, f"{_DOCKER_ARCHIVE}{file}")
    what = target.lookup(name)
    return Source(parse_reference(f"oci-archive:{file}"), target, what, f"{target.name}:{what.digest}")


def _destination(app: App, asked: Transfer, source: Source) -> tuple[Target, str]:
    if not asked.destination:
        return LayoutTarget(app.store_directory, create=True), _pulled_tag(asked.reference)
    reference = parse_reference(asked.destination)
    if not isinstance(reference, RegistryReference) or reference.digest:
        if asked.mount_from:
            raise SpecError(f"--mount-from: want a registry as destination, got {asked.destination!r}")
        return open_destination(app, asked.destination)
    neighbours = [*asked.mount_from, *_neighbours(app, source, reference)]
    client = registry_client(app)
    return repository(app, reference, client, writable=True, mount_from=neighbours), reference.tag


def _neighbours(app: App, source: Source, destination: RegistryReference) -> list[str]:
    """Repositories that surely or likely hold the layers: the source's own, those of the parent and of the base."""
    match source.reference:
        case RegistryReference(host=host, repository=name) if host == destination.host:
            return [name]
        case EnvironmentName(name=name) if app.project:
            chain = list(lineage(app.project, name))
            system = chain[-1].base.system if chain[-1].base else None
            bases = beside(destination, [system.image] if system else [])
            if destination.repository.rpartition("/")[2] != name:
                return [*bases]
            # As ``envbuilder push standard HOST/env/standard`` and then ``push ai HOST/env/ai`` leave them.
            return [*(destination.repository[: -len(name)] + spec.name for spec in chain[1:]), *bases]
    return []


def _one_platform(source: Source, platform: Platform) -> Source:
    """``source`` narrowed to the manifest of ``platform``."""
    from envbuilder.image.inspect import open_image  # noqa: PLC0415  the whole index is copied without

    what = open_image(source.target, source.what, platform).descriptor
    plain = Descriptor(media_type=what.media_type, digest=what.digest, size=what.size)
    return replace(source, what=plain)


def _to_docker_archive(app: App, source: Source, asked: Transfer) -> Result:
    """A docker-archive holds one platform, uncompressed: ``docker load`` of any age reads it."""
    from envbuilder.custom.docker_archive import write_docker_archive  # noqa: PLC0415  seldom needed
    from envbuilder.image.inspect import open_image  # noqa: PLC0415  see above

    started = time.monotonic()
    file, name = _file_and_name(asked.destination)
    image = open_image(source.target, source.what, asked.platform or host_platform_of())
    size = 0
    if not asked.dry_run:
        folder = file.absolute().parent
        with app.output.stage(asked.what) as meter, PendingFile(folder) as pending:
            for block in write_docker_archive(source.target, image, name or "image:latest", spool=folder):
                size += pending.write(block)
                meter.advance(len(block))
            pending.publish(file.absolute())
    value = {
        "reference": asked.reference,
        "destination": asked.destination,
        "digest": str(image.manifest.config.digest),
        "pinned": f"{_DOCKER_ARCHIVE}{file}:{image.manifest.config.digest}",
        "copied": len(image.manifest.layers) + 1,
        "copied_bytes": size,
        "skipped": 0,
        "skipped_bytes": 0,
        "dry_run": asked.dry_run,
        "seconds": round(time.monotonic() - started, 3),
    }
    return Result(str(image.manifest.config.digest), value)


def _file_and_name(text: str) -> tuple[Path, str]:
    """``docker-archive:FILE[:NAME:TAG]``."""
    path, _, name = text.removeprefix(_DOCKER_ARCHIVE).partition(":")
    if not path:
        raise SpecError(f"reference: no path in {text!r}", hint="Write docker-archive:FILE[:NAME:TAG].")
    return Path(path), name


def _pulled_tag(reference: str) -> str:
    """The store's tag for what was pulled as ``reference``; an environment's own tag never begins with ``_``.

    An image's labels are anyone's: by them it could take the place of an environment that was built here.
    """
    return ("_" + re.sub(r"[^A-Za-z0-9._-]+", "-", reference))[:128]


def _pinned(destination: str, target: Target, digest: Digest) -> str:
    if destination:
        reference = parse_reference(destination)
        if isinstance(reference, RegistryReference):
            return str(reference.at(digest))
    return f"{target.name}:{digest}"
