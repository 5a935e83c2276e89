"""What is written where: results on stdout, progress on stderr, nothing when quiet."""

import json

import pytest

from envbuilder.cli.output import Output, Result


def test_a_result_stands_alone_on_stdout(capsys):
    output = Output(as_json=True)

    output.note("a note")
    output.result(Result("text", {"a": 1}))

    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"a": 1}
    assert shown.err == "a note\n"


def test_off_a_terminal_a_stage_ends_with_a_line_as_soon_as_all_is_done(capsys):
    with Output().stage("fetch", 2000) as meter:
        meter.advance(1500)
        assert capsys.readouterr().err == ""

        meter.advance(500)
        assert capsys.readouterr().err.startswith("fetch: 2.0 kB in ")

    assert capsys.readouterr().err == ""


def test_a_stage_that_has_nothing_to_do_says_nothing(capsys):
    with Output().stage("fetch", 0):
        pass

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("size", [0, 10])
def test_quiet_leaves_only_the_result(capsys, size):
    output = Output(quiet=True)

    output.note("a note")
    with output.stage("fetch", size) as meter:
        meter.advance(size)
    output.result(Result("text", None))

    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("text\n", "")
