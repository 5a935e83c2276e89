"""``envbuilder tags REF``: the tags of a repository or layout, listed or deleted."""

from __future__ import annotations

from pathlib import Path

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.output import Result
from envbuilder.cli.registries import registry_client
from envbuilder.cli.repositories import repository
from envbuilder.oci.artifact import subject_of_tag
from envbuilder.oci.reference import InvalidReference, LayoutReference, RegistryReference, parse_reference
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound


@click.command(name="tags", epilog="Example: envbuilder tags localhost:5000/env/ai")
@click.argument("place", metavar="PLACE")
@click.option("--delete", "deleted", multiple=True, metavar="TAG", help="Delete a tag; what it named stays. Repeat.")
@click.option("--all", "everything", is_flag=True, help="Also tags that stand beside images: referrers, signatures.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, delete nothing.")
@common
def command(app: App, place: str, deleted: tuple[str, ...], everything: bool, dry_run: bool) -> Result:
    """List the tags of PLACE (host/repository or oci:DIR), or delete some.

    Some registries delete no tags, only manifests (gc does that), and some tags may not go; then the reason is given.
    """
    target = open_place(app, place)
    names = tuple(sorted(target.tags())) if isinstance(target, LayoutTarget) else target.tag_names()
    if missing := sorted(set(deleted) - set(names)):
        raise NotFound(f"{target.name}: no tag {', '.join(missing)}", hint="List the tags first.")
    for tag in deleted if not dry_run else ():
        if isinstance(target, LayoutTarget):
            target.untag(tag)
        else:
            target.delete_tag(tag)
    if deleted:
        text = f"{'would delete' if dry_run else 'deleted'} {', '.join(deleted)}"
        return Result(text, {"place": target.name, "deleted": list(deleted), "dry_run": dry_run})
    shown = [name for name in names if everything or subject_of_tag(name) is None]
    return Result("\n".join(shown), {"place": target.name, "tags": shown})


def open_place(app: App, text: str) -> LayoutTarget | RegistryTarget:
    """The layout or repository that ``text`` names; "" is the store. A tag in it plays no part.

    Raises:
        InvalidReference: neither.
    """
    if not text:
        return LayoutTarget(Path(app.store_directory))
    reference = parse_reference(text)
    match reference:
        case RegistryReference():
            return repository(app, reference, registry_client(app), deleting=True)
        case LayoutReference():
            return LayoutTarget(reference.directory)
        case _:
            raise InvalidReference(f"{text}: want host/repository or oci:DIR", hint="Name one of these.")
