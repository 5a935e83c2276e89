"""Docs stay true: help text, paths and commands that they show exist as shown."""

import os
import re
import shlex
from pathlib import Path

import click
import pytest

from envbuilder.cli.verbs import VERBS, cli

ROOT = Path(__file__).resolve().parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def help_of(command: click.Command, name: str) -> str:
    context = click.Context(command, info_name=name, max_content_width=100, terminal_width=100)
    return command.get_help(context)


def reference() -> str:
    parts = ["# Command line\n\nMade from `--help` by `make golden`; a test compares them.\n"]
    for verb in ["", *VERBS]:
        command = cli.get_command(click.Context(cli), verb) if verb else cli
        assert command is not None
        name = f"envbuilder {verb}".strip()
        parts.append(f"## {name}\n\n```text\n{help_of(command, name)}\n```\n")
    return "\n".join(parts)


def test_the_command_line_reference_is_what_help_prints():
    file = ROOT / "docs" / "cli.md"
    if os.environ.get("ENVBUILDER_GOLDEN") == "write":
        file.write_text(reference())

    assert file.read_text() == reference()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_and_the_options_that_all_have(verb):
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None

    text = help_of(command, f"envbuilder {verb}")

    assert f"Example: envbuilder {verb}" in text
    assert all(option in text for option in ("--json", "--quiet", "--debug"))


@pytest.mark.parametrize("file", DOCS, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(file):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", file.read_text())

    assert [link for link in links if not (file.parent / link).exists()] == []


def readme_commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [words for block in blocks for line in block.splitlines() if (words := shlex.split(line, comments=True))]


def test_the_readme_shows_commands():
    assert len(readme_commands()) > 10


@pytest.mark.parametrize("words", readme_commands(), ids=" ".join)
def test_a_command_of_the_readme_is_one_that_exists(words):
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words[1:] if "=" not in word and word not in targets] == []
    else:
        command = cli.get_command(click.Context(cli), words[1])
        assert command is not None
        command.make_context(words[1], words[2:])
