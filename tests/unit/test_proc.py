"""Programs are started with what they are given, and say what they said."""

import pytest

from envbuilder.proc import ProgramFailed, ProgramMissing, run


def test_a_program_reads_its_input_and_its_output_comes_back():
    data = bytes(range(256)) * 4096

    done = run(["/bin/cat"], stdin=data)

    assert (done.status, done.stdout, done.stderr) == (0, data, b"")


def test_a_program_without_input_sees_the_end_at_once():
    assert run(["/bin/cat"]).stdout == b""


def test_both_streams_are_kept_apart():
    done = run(["/bin/sh", "-c", "echo out; echo err >&2; echo more"])

    assert (done.stdout, done.stderr) == (b"out\nmore\n", b"err\n")


def test_a_program_that_does_not_read_its_input_is_no_error():
    assert run(["/bin/true"], stdin=b"x" * 1_000_000).status == 0


def test_a_failure_has_status_and_stderr():
    with pytest.raises(ProgramFailed, match="exit status 3\nno luck") as caught:
        run(["/bin/sh", "-c", "echo no luck >&2; exit 3"])

    assert (caught.value.status, caught.value.stderr) == (3, "no luck\n")


def test_a_failure_may_be_looked_into():
    assert run(["/bin/sh", "-c", "exit 3"], check=False).status == 3


def test_the_environment_is_replaced():
    assert run(["/usr/bin/env"], env={"A": "b"}).stdout == b"A=b\n"


def test_a_missing_program_is_named():
    with pytest.raises(ProgramMissing, match="no-such-program"):
        run(["/no-such-program"])


def test_a_program_that_takes_too_long_is_stopped():
    with pytest.raises(ProgramFailed, match=r"no answer within 0\.02 s"):
        run(["/bin/sleep", "60"], timeout_s=0.02)


def test_a_program_that_leaves_another_running_is_done_when_it_ends():
    """As credential helpers do that start an agent; it keeps both streams open."""
    done = run(["sh", "-c", "sleep 20 & echo answer; echo note >&2"], timeout_s=10)

    assert (done.stdout, done.stderr) == (b"answer\n", b"note\n")
