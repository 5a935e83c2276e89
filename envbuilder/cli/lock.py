"""``envbuilder lock ENV...``: choose versions, write the lock only if it changes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.bases import base_reader
from envbuilder.cli.complete import environment_names
from envbuilder.cli.listings import TOGETHER, Listings
from envbuilder.cli.output import Result
from envbuilder.cli.project import artifact_cache, lock_machine, read_lock
from envbuilder.lock.changes import changes
from envbuilder.lock.check import require_fresh
from envbuilder.lock.codec import dump
from envbuilder.lock.download import Http, http_pool
from envbuilder.lock.make import make_lock, spread
from envbuilder.lock.model import Lock
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import EnvSpec
from envbuilder.spec.project import lineage, lock_file
from envbuilder.store.files import disk_errors, write_whole


@dataclass(frozen=True, slots=True)
class _Options:
    upgrade: bool
    upgrade_packages: tuple[str, ...]
    frozen: bool
    dry_run: bool
    spread: bool
    check_bytes: bool = False


@dataclass(frozen=True, slots=True)
class _Done:
    """A lock, what a reader wants to know of it against the one before, and what a build will refuse of it."""

    lock: Lock
    changes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (*self.changes, *(f"! a build will refuse this: {each}" for each in self.conflicts))


@click.command(name="lock", epilog="Example: envbuilder lock ai --upgrade-package transformers")
@click.argument("environments", nargs=-1, required=True, metavar="ENV...", shell_complete=environment_names)
@click.option("--upgrade", is_flag=True, help="Choose every version anew.")
@click.option(
    "--upgrade-package", "upgrade_packages", multiple=True, metavar="P", help="Choose this package's version anew."
)
@click.option("--spread", is_flag=True, help="Give packages to layers anew; versions stay.")
@click.option("--frozen", is_flag=True, help="Write nothing; fail if a lock is stale. Offline.")
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="P",
    help="Platform to lock for, any number (default: linux/x86_64).",
)
@click.option("--all-platforms", is_flag=True, help="Lock for every platform that an environment declares.")
@click.option(
    "--check-bytes", is_flag=True, help="Fetch and hash new files of named indexes: what they promise is not believed."
)
@click.option("--dry-run", is_flag=True, help="Say what would change, write nothing.")
@common
def command(
    app: App,
    environments: tuple[str, ...],
    upgrade: bool,
    upgrade_packages: tuple[str, ...],
    spread: bool,
    frozen: bool,
    platforms: tuple[str, ...],
    all_platforms: bool,
    check_bytes: bool,
    dry_run: bool,
) -> Result:
    """Choose versions for environments and write their locks, each only if it changes.

    What a lock pins stays, unless the declaration no longer allows it or it is upgraded. The locks of
    environments that ENV extends are brought up to date first. Files that two new wheels have at one path are
    named: of wheels that are not here, only their directories are read.
    """
    project, options = app.need_project(), _Options(upgrade, upgrade_packages, frozen, dry_run, spread, check_bytes)
    if platforms and all_platforms:
        raise click.UsageError("--platform and --all-platforms exclude each other")
    if frozen and (upgrade or upgrade_packages or spread):
        raise click.UsageError("--frozen changes no lock: it excludes --upgrade, --upgrade-package and --spread")
    asked = tuple(Platform.parse(each) for each in platforms or ("linux/x86_64",))
    for_parents = replace(options, upgrade=False, upgrade_packages=(), spread=False)
    done: dict[tuple[str, Platform], _Done] = {}
    for name in environments:
        specs = list(lineage(project, name))[::-1]
        for platform in specs[-1].platforms if all_platforms else asked:
            above: list[Lock] = []
            for number, spec in enumerate(specs):
                if (spec.name, platform) not in done:
                    own = options if spec.name in environments else for_parents
                    done[spec.name, platform] = _lock(app, project, specs[: number + 1], platform, own, above)
                above.append(done[spec.name, platform].lock)
    rows = [
        {
            "name": name,
            "platform": str(platform),
            "file": str(lock_file(project, name, platform).relative_to(project)),
            "changed": bool(each.changes),
            "changes": list(each.changes),
            "conflicts": list(each.conflicts),
        }
        for (name, platform), each in done.items()
    ]
    several = len({platform for _, platform in done}) > 1
    names = [f"{name} ({platform})" if several else name for name, platform in done]
    text = [f"{name}: {line}" for name, each in zip(names, done.values(), strict=True) for line in each.lines]
    if not text:
        app.output.note(f"{', '.join(names)}: fresh, nothing changed")
    return Result("\n".join(text), rows)


def _lock(
    app: App,
    project: Path,
    specs: Sequence[EnvSpec],
    platform: Platform,
    options: _Options,
    above: Sequence[Lock],
) -> _Done:
    """Lock the last of ``specs``, the others are what it extends, the root first; above: the locks of those."""
    spec = specs[-1]
    existing, parent = read_lock(project, spec.name, platform), above[-1] if above else None
    if options.frozen:
        return _Done(require_fresh(spec, platform, existing, parent))
    app.output.note(f"{spec.name}: locking for {platform}")
    listings = Listings(
        cache=artifact_cache(app, os.environ),
        http=Http(pool=http_pool(os.environ, connections=TOGETHER), wait=time.sleep),
    )
    lock = make_lock(
        spec,
        platform,
        machine=replace(
            lock_machine(app, os.environ, check_bytes=options.check_bytes),
            base_of=base_reader(app, spec.name),
            chosen=listings.note,
        ),
        existing=spread(existing, parent) if options.spread and existing else existing,
        parent=parent,
        lineage=specs[:-1],
        upgrade=options.upgrade,
        upgrade_packages=options.upgrade_packages,
    )
    lines = changes(existing, lock, parent) if existing is None or dump(existing) != dump(lock) else ()
    if lines and not options.dry_run:
        file = lock_file(project, spec.name, platform)
        with disk_errors(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file.parent, file, dump(lock))
    return _Done(lock, lines, listings.conflicts([*above, lock]) if lines else ())
