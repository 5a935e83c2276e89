"""Folders of archive indexes that are kept from lock to lock: ours alone, or not at all."""

import threading

import pytest

from envbuilder.lock.lists import kept_lists


def test_a_folder_is_kept_for_what_it_is_of_and_closed_to_others(tmp_path):
    found = []
    for what in (("deb one", "amd64"), ("deb one", "amd64"), ("deb one", "arm64")):
        with kept_lists(tmp_path / "apt", what, tmp_path / "otherwise") as folder:
            found.append(folder)

    assert found[0] == found[1] != found[2]
    assert (found[0] / "partial").is_dir()
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path / "apt", *found)] == [0o700] * 4


@pytest.mark.parametrize(
    "make", [lambda kept: kept.write_text(""), lambda kept: None], ids=["a file there", "none asked"]
)
def test_without_a_place_a_temporary_one_serves(tmp_path, make):
    kept = tmp_path / "apt"
    make(kept)

    with kept_lists(kept if kept.exists() else None, ("deb", "amd64"), tmp_path / "otherwise") as folder:
        assert folder == tmp_path / "otherwise"
        assert (folder / "partial").is_dir()


def test_a_link_to_somewhere_else_is_not_ours(tmp_path):
    with kept_lists(tmp_path / "apt", ("deb", "amd64"), tmp_path / "first") as folder:
        name = folder.name
    (tmp_path / "apt" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "apt" / name).symlink_to(tmp_path / "elsewhere")

    with kept_lists(tmp_path / "apt", ("deb", "amd64"), tmp_path / "otherwise") as folder:
        assert folder == tmp_path / "otherwise"


def test_two_locks_that_want_the_same_wait_for_each_other(tmp_path):
    inside = threading.Event()

    def other():
        with kept_lists(tmp_path / "apt", ("deb", "amd64"), tmp_path / "b"):
            inside.set()

    with kept_lists(tmp_path / "apt", ("deb", "amd64"), tmp_path / "a"):
        waiting = threading.Thread(target=other)
        waiting.start()
        assert not inside.wait(0.1)
    waiting.join(5)
    assert inside.is_set()
