"""Totals of a node: each mount counts once, whoever adds it and however often."""

import multiprocessing

import pytest

from envbuilder.mount.counters import Counters, Snapshot
from envbuilder.mount.seen.totals import add_to_totals, read_totals
from envbuilder.mount.state import MountFolder, Record


def test_what_mounts_did_is_added_up(tmp_path):
    add_to_totals(tmp_path, "one", Snapshot(fetched_bytes=5, hits=1))
    add_to_totals(tmp_path, "two", Snapshot(fetched_bytes=7))

    totals = read_totals(tmp_path)
    assert (totals.mounts, totals.counters.fetched_bytes, totals.counters.hits) == (2, 12, 1)


def test_a_mount_counts_once(tmp_path):
    add_to_totals(tmp_path, "one", Snapshot(fetched_bytes=5))
    add_to_totals(tmp_path, "one", Snapshot(fetched_bytes=5))

    assert read_totals(tmp_path).counters.fetched_bytes == 5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"mounts": "x"}', '{"mounts": 1, "counters": 3, "ids": []}'])
def test_totals_that_cannot_be_read_begin_anew(tmp_path, text):
    (tmp_path / "totals.json").write_text(text)
    assert read_totals(tmp_path).mounts == 0

    add_to_totals(tmp_path, "one", Snapshot(fetched_bytes=5))

    assert read_totals(tmp_path).counters.fetched_bytes == 5


def _add(state, number):
    for each in range(20):
        add_to_totals(state, f"{number}-{each}", Snapshot(hits=1))


def test_processes_that_add_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add, args=(tmp_path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert read_totals(tmp_path).counters.hits == 80


def test_a_mount_is_counted_when_its_folder_goes(tmp_path):
    folder = MountFolder(tmp_path, "one")
    folder.path.mkdir(parents=True)
    folder.write(
        Record(
            id="one", directory="/x", image="i", how="", writable=False, private=False, detached=False, keeper=1,
            supervisor=1, points=(),
        )
    )  # fmt: skip
    Counters(folder.counters).add("hits", 3)

    folder.remove()

    assert not folder.path.exists()
    assert read_totals(tmp_path).counters.hits == 3
