"""``envbuilder plan ENV``: which layers change, why, and how much a push would send."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.diff import size_text
from envbuilder.cli.output import Result, human_size, table
from envbuilder.cli.predictions import read_predicted
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.sides import NoSuchLock, Side, open_side
from envbuilder.cli.targets import host_platform_of, look_at_destination
from envbuilder.image.forecast import Forecast, forecast
from envbuilder.image.overlaps import check_here
from envbuilder.layer.explain import reasons
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.mount.startup.newest import newest_trace
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramMissing
from envbuilder.store.layout import LayoutTarget

#: What a layer's way to the target is called in the table.
_WAYS = {"": "", "send": "push", "mount": "push or mount", "unknown": "push"}


@click.command(name="plan", epilog="Example: envbuilder plan ai --to localhost:5000/env/ai:2")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.option("--to", "destination", metavar="REF", default="", help="Where it would be pushed: what is missing there.")
@click.option("--against", metavar="LOCK", default="", help="Lock to compare with (default: HEAD:ENV of git).")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@common
def command(app: App, environment: str, destination: str, against: str, platform: str) -> Result:
    """Say which layers of ENV's lock must be made or sent, why, and how many bytes; nothing is built or sent.

    Sizes are exact where a layer was built once by anybody who recorded it, else estimates, marked with ~. With --to
    the place itself is asked: the sum is exact, or says "at most" where a registry may take layers from another of its
    repositories, or "unknown until built" of what nobody recorded; a start-up trace counts once the image has it. Where
    something must be built, packages that are on this machine are checked for conflicts.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    project = app.need_project()
    locks = fresh_locks(project, environment, parsed)
    predicted = read_predicted(project, locks[-1])
    new = Side(name=environment, lock=locks[-1], chain=locks, predicted=predicted)
    old = _against(app, against, environment, parsed)
    why = reasons(old.plans if old else (), new.plans)
    target = look_at_destination(app, destination) if destination else None
    store, cache = LayoutTarget(app.store_directory, create=True), artifact_cache(app, os.environ)
    found = forecast(locks[-1], new.plans, predicted, store, target, newest_trace)
    estimates = {piece.id: piece.size for piece in new.pieces()}
    rows = [
        {
            "layer": each.id,
            "build": each.build,
            "push": bool(each.way),
            "way": each.way,
            "digest": str(each.blob.digest) if each.blob else "",
            "size": each.blob.size if each.blob else estimates[each.id],
            "exact": each.blob is not None,
            "why": why[each.id] if old else "",
        }
        for each in found.layers
    ]
    made = {each.id for each in found.layers if each.build}
    needed = {
        each.digest: each for plan in new.plans if plan.id in made for each in plan.artifacts if not cache.has(each)
    }
    unread = _check_conflicts(app, new, cache) if any(row["build"] for row in rows) else 0
    value = {
        "name": environment,
        "unread": unread,
        "layers": rows,
        "build": len(made),
        "fetch_bytes": sum(each.size for each in needed.values()),
        **(_pushed(found, rows) if target else {}),
    }
    return Result(_text(value), value)


def _pushed(found: Forecast, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a push sends: ``push_bytes`` if ``exact``, at most so many if only ``mount_layers`` are in the way of
    that, else those and what is unknown.
    """
    # Two layers may be one blob, which goes once.
    blobs = {each.blob.digest: (each.way, each.blob.size) for each in found.layers if each.way and each.blob}
    ways = [way for way, _ in blobs.values()]
    unknown = [row for row in rows if row["way"] == "unknown"]
    return {
        "push_layers": len(blobs),
        "push_bytes": sum(size for _, size in blobs.values()) + (found.beside or 0),
        "mount_layers": ways.count("mount"),
        "mount_bytes": sum(size for way, size in blobs.values() if way == "mount"),
        "unknown_layers": len(unknown),
        "unknown_bytes_estimate": sum(row["size"] for row in unknown),
        "metadata_bytes": found.beside,
        "exact": not unknown and found.beside is not None and "mount" not in ways,
    }


def _check_conflicts(app: App, new: Side, cache: ArtifactCache) -> int:
    """Check the packages that are here; how many are not.

    Raises:
        As ``check_here``.
    """
    looked = check_here(new.lock, new.plans, cache, cache.has)
    for line in looked.twins:
        app.output.note(f"{new.name}: two files on Linux, one where names are folded: {line}")
    if looked.unread:
        app.output.note(
            f"{new.name}: {looked.unread} of {looked.unread + looked.read} packages are not on this machine: build "
            "checks those"
        )
    return looked.unread


def _against(app: App, against: str, environment: str, platform: Platform) -> Side | None:
    try:
        return open_side(app, against or f"HEAD:{environment}", platform)
    except (NoSuchLock, ProgramMissing):
        # Without git, and for an environment that was never committed, there is nothing to compare with.
        if against:
            raise
        return None


def _text(value: dict[str, Any]) -> str:
    shown = [row for row in value["layers"] if row["build"] or row["push"] or row["why"]]
    rows = [
        (
            row["layer"],
            " and ".join(filter(None, ("build" if row["build"] else "", _WAYS[row["way"]]))) or "is there",
            size_text(row["size"], exact=row["exact"]),
            row["why"] or ("not made here yet" if row["build"] else "not there yet"),
        )
        for row in shown
    ]
    lines = [table([("layer", "", "size", "why"), *rows])] if rows else []
    summary = f"{len(value['layers'])} layers: {value['build']} to build"
    summary += f", {human_size(value['fetch_bytes'])} of packages to fetch"
    return "\n\n".join([*lines, summary + (f"\n{_push_text(value)}" if "push_bytes" in value else "")])


def _push_text(value: Mapping[str, Any]) -> str:
    """What a push sends, as exactly as it is known, in words."""
    if value["exact"] and not value["push_bytes"]:
        return "to push: nothing but the tag"
    most = "at most " if value["mount_layers"] else ""
    parts = [f"{most}{human_size(value['push_bytes'])} in {value['push_layers']} layers"]
    if value["mount_layers"]:
        parts[0] += (
            f" ({value['mount_layers']} of them, {human_size(value['mount_bytes'])}, the registry may take from "
            "another of its repositories)"
        )
    if value["unknown_layers"]:
        size = size_text(value["unknown_bytes_estimate"], exact=False)
        parts.append(f"{value['unknown_layers']} layers of {size} unknown until built")
    if value["metadata_bytes"] is None:
        parts.append("the image's metadata, unknown until built")
    else:
        parts[0] += f", metadata of {human_size(value['metadata_bytes'])} included"
    return f"to push: {'; '.join(parts)}"
