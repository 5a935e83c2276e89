"""A start reads ahead as it was recorded, and no longer than it is the one that was."""

import pytest

from envbuilder.mount.counters import Counters
from envbuilder.mount.host import kernel
from envbuilder.mount.startup import readahead
from envbuilder.mount.startup.readahead import ReadAhead


@pytest.fixture
def size(tmp_path, monkeypatch):
    """What a mount reads ahead, in KiB."""
    (tmp_path / "erofs-7").mkdir()
    file = tmp_path / "erofs-7/read_ahead_kb"
    file.write_text("128\n")
    monkeypatch.setattr(kernel, "_READ_AHEAD", tmp_path)
    return lambda: int(file.read_text())


@pytest.fixture
def counters(tmp_path):
    return Counters(tmp_path / "counters")


def test_a_start_reads_ahead_as_it_was_recorded_while_its_stream_comes(size, counters):
    start = ReadAhead(frozenset({"erofs-7"}), 4096, counters, lambda: True)
    counters.add("waits", 1000)
    counters.add("hot_waits", 1000 - 6)  # six were not foreseen

    assert start.look()
    assert size() == 4


def test_a_start_that_is_another_one_reads_ahead_as_usual(size, counters):
    start = ReadAhead(frozenset({"erofs-7"}), 4096, counters, lambda: True)
    counters.add("waits", 20)

    assert not start.look()
    assert size() == 128


def test_behind_a_start_it_reads_ahead_as_usual_but_not_at_once(size, counters, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(readahead.time, "monotonic", lambda: now[0])
    start = ReadAhead(frozenset({"erofs-7"}), 4096, counters, lambda: now[0] < 110)
    seen = []
    for now[0] in (105.0, 110.0, 112.0):
        seen.append((start.look(), size()))
    now[0] = 113.5

    assert seen == [(True, 4)] * 3
    assert not start.look()
    assert size() == 128
