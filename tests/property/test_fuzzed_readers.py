"""What tools/fuzz.py does for an hour, for a moment: readers of foreign bytes refuse damage by name or read it."""

import io

import pytest

from envbuilder.testing import fuzz


@pytest.mark.parametrize("target", sorted(fuzz.TARGETS))
def test_damaged_input_is_read_or_refused_and_nothing_else(target):
    verdicts = [fuzz.check(target, fuzz.make(target, seed)) for seed in range(12)]

    assert not all(verdicts), "no input was damaged enough to be refused"


@pytest.mark.parametrize("target", sorted(fuzz.TARGETS))
def test_a_seed_names_one_input(target):
    assert [fuzz.make(target, seed) for seed in range(5)] == [fuzz.make(target, seed) for seed in range(5)]


def test_a_reader_that_writes_outside_its_folder_is_caught(monkeypatch):
    def escapes(_stream: io.BytesIO, directory, *, source):
        (directory.parent / source).write_text("out")

    monkeypatch.setattr(fuzz, "unpack_tar", escapes)

    with pytest.raises(AssertionError, match="written outside"):
        fuzz.check("tar", b"")
