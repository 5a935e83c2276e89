"""``envbuilder plan ENV``: which layers change, why, and how much a push would send."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.diff import size_text
from envbuilder.cli.output import Result, table
from envbuilder.cli.predictions import read_predicted
from envbuilder.cli.project import artifact_cache, fresh_locks
from envbuilder.cli.sides import NoSuchLock, Side, open_side
from envbuilder.cli.targets import host_platform_of, open_destination
from envbuilder.digest import Descriptor
from envbuilder.layer.build import known_blob
from envbuilder.layer.explain import reasons
from envbuilder.layer.plan import AnyPlan, check_wheels
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Artifact, Lock
from envbuilder.lock.predicted import Predicted
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramMissing
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import Target


@click.command(name="plan", epilog="Example: envbuilder plan ai --to localhost:5000/env/ai:2")
@click.argument("environment", metavar="ENV", shell_complete=environment_names)
@click.option("--to", "destination", metavar="REF", default="", help="Where it would be pushed: what is missing there.")
@click.option("--against", metavar="LOCK", default="", help="Lock to compare with (default: HEAD:ENV of git).")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@common
def command(app: App, environment: str, destination: str, against: str, platform: str) -> Result:
    """Say which layers of ENV's lock must be made or sent, why, and how many bytes; nothing is built or sent.

    Sizes are exact where a layer was built once by anybody who recorded it, else estimates, marked with ~. Where
    something must be built, packages that are on this machine are checked for conflicts.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    project = app.need_project()
    locks = fresh_locks(project, environment, parsed)
    predicted = read_predicted(project, locks[-1])
    new = Side(name=environment, lock=locks[-1], chain=locks, predicted=predicted)
    old = _against(app, against, environment, parsed)
    why = reasons(old.plans if old else (), new.plans)
    target = open_destination(app, destination)[0] if destination else None
    store, cache = LayoutTarget(app.store_directory, create=True), artifact_cache(app, os.environ)
    pieces = {piece.id: piece for piece in new.pieces()}

    def row(plan: AnyPlan) -> dict[str, Any]:
        local = known_blob(plan, store)
        blob = local or _predicted(predicted, plan)
        there = bool(target and blob and target.has(blob))
        return {
            "layer": plan.id,
            "build": not there and not (local and store.has(local)),
            "push": bool(target) and not there,
            "size": blob.size if blob else pieces[plan.id].size,
            "exact": blob is not None,
            "why": why[plan.id] if old else "",
            "artifacts": plan.artifacts,
        }

    with ThreadPoolExecutor(8, "plan") as pool:
        rows = list(pool.map(row, new.plans))
    needed: dict[Any, Artifact] = {
        each.digest: each for row in rows for each in row.pop("artifacts") if row["build"] and not cache.has(each)
    }
    unread = _check_conflicts(app, locks[-1], cache) if any(row["build"] for row in rows) else 0
    value = {
        "name": environment,
        "unread": unread,
        "layers": rows,
        "build": sum(row["build"] for row in rows),
        "fetch_bytes": sum(each.size for each in needed.values()),
        "push_bytes": sum(row["size"] for row in rows if row["push"]),
        "exact": all(row["exact"] for row in rows if row["push"]),
    }
    return Result(_text(value, target), value)


def _check_conflicts(app: App, lock: Lock, cache: ArtifactCache) -> int:
    """Check the wheels that are here; how many are not.

    Raises:
        Conflict: two of them have different files at one path.
    """
    here = [wheel for wheel in lock.wheels if cache.has(wheel)]
    check_wheels(here, cache, lock.python)
    unread = len(lock.wheels) - len(here)
    if unread:
        app.output.note(
            f"{lock.name}: {unread} of {len(lock.wheels)} wheels are not on this machine: build checks those"
        )
    return unread


def _against(app: App, against: str, environment: str, platform: Platform) -> Side | None:
    try:
        return open_side(app, against or f"HEAD:{environment}", platform)
    except (NoSuchLock, ProgramMissing):
        # Without git, and for an environment that was never committed, there is nothing to compare with.
        if against:
            raise
        return None


def _predicted(predicted: Predicted | None, plan: AnyPlan) -> Descriptor | None:
    for layer in predicted.layers if predicted else ():
        if layer.key == plan.key:
            return Descriptor(media_type=media_types.OCI_LAYER_TAR_ZSTD, digest=layer.digest, size=layer.size)
    return None


def _text(value: dict[str, Any], target: Target | None) -> str:
    shown = [row for row in value["layers"] if row["build"] or row["push"] or row["why"]]
    rows = [
        (
            row["layer"],
            " and ".join(word for word in ("build", "push") if row[word]) or "is there",
            size_text(row["size"], exact=row["exact"]),
            row["why"] or ("not made here yet" if row["build"] else "not there yet"),
        )
        for row in shown
    ]
    lines = [table([("layer", "", "size", "why"), *rows])] if rows else []
    summary = f"{len(value['layers'])} layers: {value['build']} to build"
    summary += f", {size_text(value['fetch_bytes'], exact=True)} of packages to fetch"
    if target:
        summary += f", {size_text(value['push_bytes'], exact=value['exact'])} to push, and the image's metadata"
    return "\n\n".join([*lines, summary])
