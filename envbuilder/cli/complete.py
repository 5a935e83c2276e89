"""Shell completion of what only the project knows: the names of its environments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from envbuilder.errors import EnvbuilderError
from envbuilder.spec.project import environments, find_project

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def environment_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The environments of the project that begin with ``begun``; none outside a project."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  seldom needed

    try:
        project = context.params.get("project") or find_project(Path.cwd())
        return [CompletionItem(name) for name in environments(project) if name.startswith(begun)]
    except (EnvbuilderError, OSError):
        return []
