"""Trees that are kept: whole or made anew, whatever was removed of them, by however many at once."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder.layer.kept_tree import kept_tree

FILES = {"usr/bin/tool": b"t", "usr/lib/a/x.py": b"x", "usr/lib/a/y.py": b"y", "usr/lib/b/z.py": b"z", "etc/hosts": b""}


def fill(directory):
    for path, data in FILES.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)
    (directory / "usr/empty").mkdir()
    (directory / "usr/link").symlink_to("lib")


def never(_directory):
    raise AssertionError("it was made again")


def contents(tree):
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture
def tree(tmp_path):
    return kept_tree(tmp_path / "trees/one", fill)


def test_a_whole_tree_is_used_again(tree):
    assert kept_tree(tree, never) == tree
    assert contents(tree) == FILES
    assert oct(tree.stat().st_mode) == "0o40755"


def test_what_a_tree_gained_does_not_count(tree):
    for folder in ("proc", "usr/lib/a/__pycache__"):
        (tree / folder).mkdir()
    os.utime(tree / "etc", (1, 1))

    assert kept_tree(tree, never) == tree


def everything(tree):
    return sorted((path for path in tree.rglob("*")), key=lambda path: -len(path.parts))


def test_a_removal_that_was_stopped_anywhere_is_found_out(tmp_path):
    whole = kept_tree(tmp_path / "trees/one", fill)
    for count in range(1, len(everything(whole)) + 1):
        for path in everything(whole)[:count]:  # as rm -rf does it, depth first
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        assert contents(kept_tree(whole, fill)) == FILES
        assert kept_tree(whole, never) == whole


@pytest.mark.parametrize("path", [*sorted(FILES), "usr/empty", "usr/link"])
def test_any_one_thing_that_went_is_found_out(tree, path):
    gone = tree / path
    gone.rmdir() if path == "usr/empty" else gone.unlink()

    kept_tree(tree, fill)

    assert (tree / path).exists()


def test_a_directory_that_became_a_link_or_a_file_is_found_out(tree):
    for make in (lambda path: path.symlink_to("../usr/lib"), lambda path: path.write_bytes(b"")):
        shutil.rmtree(tree / "usr/lib/a")
        make(tree / "usr/lib/a")
        kept_tree(tree, fill)
        assert contents(tree) == FILES


@pytest.mark.parametrize("record", ["", "[]", "{}", "3", "[[1]]", '[["", 0, "x"]]', '[["\\u0000", 1, 1]]', "\0", None])
def test_a_tree_that_nobody_remembers_is_made_again(tree, record):
    file = tree.with_name("one.lock")
    file.unlink() if record is None else file.write_text(record)

    kept_tree(tree, fill)

    assert json.loads(file.read_text())
    assert kept_tree(tree, never) == tree


def test_who_stands_in_a_tree_that_lost_a_part_keeps_the_rest_until_the_next(tree):
    (tree / "etc/hosts").unlink()
    opened = os.open(tree, os.O_RDONLY)
    inside = Path(f"/proc/self/fd/{opened}")
    kept_tree(tree, fill)

    assert sorted(path.name for path in inside.iterdir()) == ["etc", "usr"]
    (tree / "etc/hosts").unlink()
    kept_tree(tree, fill)
    assert list(inside.iterdir()) == []
    os.close(opened)


def test_a_tree_is_made_once_by_many_who_ask_at_once(tmp_path):
    made = []

    def slowly(directory):
        made.append(directory)
        time.sleep(0.05)
        fill(directory)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: kept_tree(tmp_path / "trees/one", slowly), range(8)))

    assert len(made) == 1


def test_a_tree_that_could_not_be_made_leaves_nothing_and_the_next_one_makes_it(tmp_path):
    def fails(directory):
        fill(directory)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        kept_tree(tmp_path / "trees/one", fails)

    assert [path.name for path in (tmp_path / "trees").iterdir()] == ["one.lock"]
    assert contents(kept_tree(tmp_path / "trees/one", fill)) == FILES


def test_who_is_killed_while_making_a_tree_leaves_none_and_the_next_one_removes_the_rest(tmp_path):
    program = (
        "import sys, time, pathlib; from envbuilder.layer.kept_tree import kept_tree\n"
        "def fill(directory):\n (directory / 'half').mkdir(); print('half', flush=True); time.sleep(60)\n"
        "kept_tree(pathlib.Path(sys.argv[1]), fill)"
    )
    tree = tmp_path / "trees/one"
    with subprocess.Popen([sys.executable, "-c", program, str(tree)], stdout=subprocess.PIPE) as half:
        half.stdout.readline()
        half.send_signal(signal.SIGKILL)

    assert not tree.exists()
    assert contents(kept_tree(tree, fill)) == FILES
    assert sorted(path.name for path in tree.parent.iterdir()) == ["one", "one.lock"]


def test_a_link_in_place_of_the_lock_is_not_written_through(tree, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("kept")
    tree.with_name("one.lock").unlink()
    tree.with_name("one.lock").symlink_to(outside)

    with pytest.raises(OSError, match="symbolic links"):
        kept_tree(tree, fill)
    assert outside.read_text() == "kept"
