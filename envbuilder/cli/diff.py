"""``envbuilder diff A B``: two locks compared."""

from __future__ import annotations

from dataclasses import asdict

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, table
from envbuilder.cli.sides import Side, open_side
from envbuilder.cli.targets import host_platform_of
from envbuilder.lock.diff import ArtifactChange, Difference, difference
from envbuilder.oci.platform import Platform


@click.command(name="diff", epilog="Example: envbuilder diff HEAD~1:ai ai")
@click.argument("before", metavar="A", shell_complete=environment_names)
@click.argument("after", metavar="B", shell_complete=environment_names)
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@common
def command(app: App, before: str, after: str, platform: str) -> Result:
    """Say what B has that A has not: versions, sizes, layers, and the bytes that a node with A fetches for B.

    A and B are environments, environments at a revision of git (HEAD~1:ai) or lock files. Sizes of layers are
    estimates, marked with ~, until somebody built them.
    """
    parsed = Platform.parse(platform) if platform else host_platform_of()
    old, new = open_side(app, before, parsed), open_side(app, after, parsed)
    found = compare(old, new)
    value = {
        "before": before,
        "after": after,
        "artifacts": [asdict(each) for each in found.artifacts],
        "layers": [asdict(each) for each in found.layers if each.state != "same"],
        "same_layers": sum(each.state == "same" for each in found.layers),
        "fetch_bytes": found.fetch,
        "exact": found.exact,
    }
    return Result(_text(found), value)


def compare(old: Side, new: Side) -> Difference:
    """The difference; layers are told by their plans where both sides have them, else by what is in them."""
    by_plan = bool(old.keys and new.keys)
    return difference(old.lock, new.lock, old.pieces(by_plan=by_plan), new.pieces(by_plan=by_plan))


def _text(found: Difference) -> str:
    parts = []
    if found.artifacts:
        parts.append("\n".join(map(_line, found.artifacts)))
    rows = [
        (each.id, each.state, human_size(each.before) if each.before else "", size_text(each.after, exact=each.exact))
        for each in found.layers
        if each.state not in ("same", "moved")
    ]
    if rows:
        parts.append(table([("layer", "", "before", "after"), *rows]))
    same = sum(each.state in ("same", "moved") for each in found.layers)
    parts.append(f"{same} layers are the same; a node fetches {size_text(found.fetch, exact=found.exact)}")
    return "\n\n".join(parts)


def _line(each: ArtifactChange) -> str:
    sizes = f" ({human_size(each.size_before)} -> {human_size(each.size_after)})"
    if not each.before:
        return f"+ {each.name} {each.after} ({human_size(each.size_after)})"
    if not each.after:
        return f"- {each.name} {each.before}"
    same = each.before == each.after
    return f"{each.name} {each.before}" + (": other file" if same else f" -> {each.after}") + sizes


def size_text(size: int, *, exact: bool) -> str:
    """``size`` for people, with a mark where it is an estimate."""
    return human_size(size) if exact or not size else f"~{human_size(size)}"
