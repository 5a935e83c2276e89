"""``envbuilder cache ACTION``: what locking and building keep on this machine, by kind, and its removal by age."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.gc import age_s
from envbuilder.cli.output import Result, human_size, table
from envbuilder.cli.sides import NoSuchLock
from envbuilder.errors import SpecError
from envbuilder.lock.artifact_archive import artifacts_of
from envbuilder.lock.codec import MAX_SIZE, load
from envbuilder.lock.model import Lock
from envbuilder.spec.toml import read_document
from envbuilder.store.cache import KINDS, Cached, contents
from envbuilder.store.cache_gc import CachePlan, collect_cache, plan_cache_gc

_NAME_LOCKS = "Name environments that are locked, or a lock file."


@click.command(name="cache", epilog="Example: envbuilder cache gc --older-than 60d --keep '*' --dry-run")
@click.argument("action", type=click.Choice(["list", "gc"]), default="list")
@click.option("--older-than", metavar="AGE", help="gc: What was used since stays: 12h, 60d (default: 30d).")
@click.option(
    "--keep",
    multiple=True,
    metavar="PATTERN",
    help="gc: Wheels, debs and bases stay that locks of these environments, or a lock file, name. Repeat.",
    shell_complete=environment_names,
)
@click.option("--dry-run", is_flag=True, help="Say what would go, delete nothing.")
@common
def command(app: App, action: str, older_than: str | None, keep: tuple[str, ...], dry_run: bool) -> Result:
    """List what locking and building keep on this machine; gc: let go what was not used for long.

    All of it is fetched or made again when it is missing, unless its index or mirror has it no more ('archive' keeps
    a copy). While something locks or builds here, nothing of the last day goes. What lazily started images keep is
    shown and freed by 'chunks'.
    """
    folder = app.cache_directory
    if action == "list":
        if older_than or keep or dry_run:
            raise SpecError("cache list: --older-than, --keep and --dry-run are of gc", hint="Say 'cache gc'.")
        return _list(folder)
    age, named = age_s(older_than or "30d"), _named(app, keep)
    if dry_run:
        plan = plan_cache_gc(folder, unused_for_s=age, keep=named)
        return _report(folder, plan, plan.size, dry_run=True)
    return _report(folder, *collect_cache(folder, unused_for_s=age, keep=named), dry_run=False)


def _list(folder: Path) -> Result:
    found = contents(folder)
    total = sum(each.size for each in found)
    kinds = _by_kind(found)
    rows = [
        (kind, str(count), human_size(size), time.strftime("%Y-%m-%d", time.localtime(oldest_s)))
        for kind, (count, size, oldest_s) in kinds.items()
    ]
    text = table([("kind", "count", "on disk", "longest unused"), *rows]) + f"\n{human_size(total)} in {folder}"
    value = [
        {"kind": kind, "count": count, "bytes": size, "oldest_use": oldest_s}
        for kind, (count, size, oldest_s) in kinds.items()
    ]
    return Result(text, {"directory": str(folder), "bytes": total, "kinds": value})


def _report(folder: Path, plan: CachePlan, freed: int, *, dry_run: bool) -> Result:
    kinds = _by_kind(plan.going)
    lines = [f"{'would free' if dry_run else 'freed'} {human_size(freed)}: {_counts(kinds)}; {plan.young} used since"]
    if plan.kept:
        lines[0] += f", {plan.kept} named"
    if plan.busy:
        lines.append("something locks or builds here: what was used in the last day stays")
    value = {
        "directory": str(folder),
        "kinds": [{"kind": kind, "count": count, "bytes": size} for kind, (count, size, _) in kinds.items()],
        "objects": [each.path for each in plan.going],
        "bytes": freed,
        "young": plan.young,
        "kept": plan.kept,
        "busy": plan.busy,
        "dry_run": dry_run,
    }
    return Result("\n".join(lines), value)


def _counts(kinds: dict[str, tuple[int, int, float]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, (count, _, _) in kinds.items()) or "nothing"


def _by_kind(found: Sequence[Cached]) -> dict[str, tuple[int, int, float]]:
    """Of each kind that is there: how many, bytes, and when the longest unused one was used."""
    kinds = {kind: [each for each in found if each.kind == kind] for kind in KINDS}
    return {
        kind: (len(these), sum(each.size for each in these), min(each.used_at_s for each in these))
        for kind, these in kinds.items()
        if these
    }


def _named(app: App, patterns: Sequence[str]) -> set[str]:
    """The digits of every digest that the locks of ``patterns`` name, those of what they extend included.

    Raises:
        NoSuchLock: a pattern means none: what was meant would go. InvalidLock: a lock is none.
    """
    locks = [lock for pattern in patterns for lock in _locks(app, pattern)]
    names = {each.digest.hex for each in artifacts_of(locks)}
    return names | {lock.system.base.manifest.hex for lock in locks if lock.system and lock.system.base}


def _locks(app: App, pattern: str) -> list[Lock]:
    if "/" in pattern or pattern.endswith(".toml"):
        files = [Path(pattern)]
    else:
        everything = sorted((app.need_project() / "lockfiles").glob("*/*.lock.toml"))
        files = [file for file in everything if fnmatch.fnmatchcase(file.parent.name, pattern)]
    if not files:
        raise NoSuchLock(f"--keep {pattern}: no lock", hint=_NAME_LOCKS)
    return [lock for file in files for lock in _chain(file)]


def _chain(file: Path) -> list[Lock]:
    """The lock in ``file``, and those of what it extends, which stand in the folders beside its own."""
    chain: list[Lock] = []
    while True:
        data = read_document(file, most=MAX_SIZE, source=str(file))
        if data is None:
            raise NoSuchLock(f"--keep: {file}: no such lock", hint=_NAME_LOCKS)
        lock = load(data, source=str(file))
        chain.append(lock)
        if lock.parent is None or lock.parent.name in {each.name for each in chain}:
            return chain
        file = file.absolute().parent.parent / lock.parent.name / file.name
