"""A verb is found by its name; one that is not there is told, with the nearest."""

import click
import pytest

from envbuilder.cli.verbs import cli


@pytest.mark.parametrize(("typed", "meant"), [("plann", "plan"), ("bulid", "build"), ("unmonut", "unmount")])
def test_a_mistyped_verb_is_answered_with_the_one_that_was_meant(typed, meant):
    with pytest.raises(click.UsageError, match=f"No such command '{typed}'. .Did you mean one of: '{meant}'"):
        cli.resolve_command(click.Context(cli), [typed, "hello"])


def test_a_word_like_no_verb_is_only_refused():
    with pytest.raises(click.UsageError, match=r"No such command 'zzzzzz'\.$"):
        cli.resolve_command(click.Context(cli), ["zzzzzz"])
