"""Completion of environments' names."""

import click
import pytest

from envbuilder.cli.complete import environment_names
from envbuilder.cli.verbs import cli


@pytest.fixture
def project(tmp_path):
    for name in ("hello", "help", "ai"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "env.toml").touch()
    return tmp_path


def test_environments_of_the_project_complete_every_verb_that_takes_one(project, monkeypatch):
    monkeypatch.chdir(project)
    for verb in ("lock", "build", "push", "resolve", "mount", "run", "inspect", "doctor"):
        command = cli.get_command(click.Context(cli), verb)
        context = click.Context(command)

        found = command.params[0].shell_complete(context, "hel")

        assert [item.value for item in found] == ["hello", "help"]


def test_outside_a_project_nothing_completes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert environment_names(click.Context(cli), click.Argument(["x"]), "") == []
