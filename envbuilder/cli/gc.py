"""``envbuilder gc [PLACE]``: free what nothing refers to, after showing it."""

from __future__ import annotations

import re
import time

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result, human_size
from envbuilder.cli.tags import open_place
from envbuilder.errors import SpecError
from envbuilder.registry.gc import collect_registry, plan_registry_gc
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.gc import KeepRules, collect, plan_gc
from envbuilder.store.layout import LayoutTarget

_AGE = re.compile(r"(\d{1,6})([smhd])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.command(name="gc", epilog="Example: envbuilder gc --dry-run --expire 'dev-*' --older-than 14d --newest 5")
@click.argument("place", metavar="[PLACE]", default="")
@click.option("--expire", multiple=True, metavar="PATTERN", help="Tags that may go; without it no tag goes. Repeat.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Tags that stay whatever else is said. Repeat.")
@click.option("--newest", default=0, metavar="N", type=click.IntRange(min=0), help="Of the tags that may go, keep N.")
@click.option("--older-than", default="0s", metavar="AGE", help="Tags that are younger stay: 30m, 12h, 14d.")
@click.option("--grace", default="1d", metavar="AGE", help="Leave alone what is younger (a push may be under way).")
@click.option("--dry-run", is_flag=True, help="Say what would go, delete nothing.")
@common
def command(
    app: App,
    place: str,
    expire: tuple[str, ...],
    keep: tuple[str, ...],
    newest: int,
    older_than: str,
    grace: str,
    dry_run: bool,
) -> Result:
    """Delete what nothing refers to in PLACE: the store, a layout (oci:DIR) or a repository (host/name).

    Nothing goes that a tag, an index, a referrer or its subject reaches. Of a registry only manifests can be
    deleted; their blobs go when the registry collects its own.
    """
    rules = KeepRules(expire=expire, keep=keep, newest=newest, older_than_s=age_s(older_than), grace_s=age_s(grace))
    target = open_place(app, place)
    done = "would free" if dry_run else "freed"
    if isinstance(target, LayoutTarget):
        plan = plan_gc(target, rules)
        freed = plan.size if dry_run else collect(target, plan)
        text = (
            f"{done} {human_size(freed)}: {len(plan.tags)} tags, {len(plan.blobs)} objects; {plan.young} are too young"
        )
        value = {"tags": list(plan.tags), "objects": [str(digest) for digest, _ in plan.blobs], "bytes": freed}
        return Result(text, {"place": target.name, **value, "young": plan.young, "dry_run": dry_run})
    return _of_registry(target, rules, dry_run=dry_run)


def _of_registry(target: RegistryTarget, rules: KeepRules, *, dry_run: bool) -> Result:
    plan = plan_registry_gc(target, rules, now_s=time.time())
    if not dry_run:
        collect_registry(target, plan)
    gone = sorted({*plan.tags, *(tag for _, tags in plan.manifests for tag in tags)})
    lines = [f"{'would delete' if dry_run else 'deleted'} {len(plan.manifests)} manifests and {len(gone)} tags", *gone]
    value = {"tags": gone, "objects": [str(digest) for digest, _ in plan.manifests], "dry_run": dry_run}
    return Result("\n".join(lines), {"place": target.name, **value})


def age_s(text: str) -> float:
    """Seconds of an age as people write it: 14d.

    Raises:
        SpecError: it is none.
    """
    match = _AGE.match(text)
    if not match:
        raise SpecError(f"age: want a number and s, m, h or d, got {text[:40]!r}", hint="Write it as 12h or 14d.")
    return float(int(match[1]) * _SECONDS[match[2]])
