"""The cache folder: what is in it, what may go by age, and that nobody who uses it comes to harm."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envbuilder.layer.kept_tree import kept_tree
from envbuilder.store.cache import contents, in_use, is_cached, use
from envbuilder.store.cache_gc import NotRemoved, collect_cache, plan_cache_gc

DAY = 24 * 3600.0
INTERPRETER = f"interpreters/python3.13-{'0' * 32}"


def old(path, days=40.0):
    at = time.time() - days * DAY
    os.utime(path, (at, at), follow_symlinks=False)


def put(cache, path, data=b"x" * 5000, days=40.0):
    file = cache / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    file.chmod(0o444)
    old(file, days)
    return file


def artefact(cache, word, days=40.0):
    digits = hashlib.sha256(word.encode()).hexdigest()
    return put(cache, f"sha256/{digits[:2]}/{digits}", days=days)


def tree(cache, path, days=40.0):
    def fill(folder):
        (folder / "usr/bin").mkdir(parents=True)
        (folder / "usr/bin/tool").write_bytes(b"x" * 9000)

    made = kept_tree(cache / path, fill)
    old(cache / f"{path}.lock", days)
    return made


@pytest.fixture
def cache(tmp_path):
    """One of each kind, not used for 40 days, and what is of no kind."""
    cache = tmp_path / "cache"
    artefact(cache, "wheel")
    tree(cache, f"bases/{'b' * 64}")
    tree(cache, INTERPRETER)
    put(cache, f"debs/{'d' * 64}.json.zst")
    put(cache, f"registries/known-{'e' * 64}.json.zst")
    put(cache, f"sha256/aa/{'a' * 64}.partial")
    put(cache, ".adopting-abc_12")
    put(cache, "lazy/chunks/one")
    put(cache, "sha256/aa/README")
    put(cache, "debs/notes.txt")
    return cache


def everything(cache):
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()} - {"in-use"}


NO_KIND = {"lazy/chunks/one", "sha256/aa/README", "debs/notes.txt"}


def test_each_kind_is_listed_with_its_size_on_disk_and_its_last_use(cache):
    found = {each.path: each for each in contents(cache)}

    assert {(each.kind, each.path.partition("/")[0]) for each in found.values()} == {
        ("wheels and debs", "sha256"), ("bases", "bases"), ("interpreters", "interpreters"), ("notes of debs", "debs"),
        ("notes of registries", "registries"), ("unfinished", "sha256"), ("unfinished", ".adopting-abc_12"),
    }  # fmt: skip
    assert all(abs(time.time() - each.used_at_s - 40 * DAY) < 60 for each in found.values())
    du = subprocess.run(["du", "-B1", "-s", cache / INTERPRETER], capture_output=True, text=True, check=True).stdout
    top = (cache / INTERPRETER).stat().st_blocks * 512
    assert found[INTERPRETER].size == int(du.split()[0]) - top


def test_what_was_not_used_for_long_goes_and_what_is_of_no_kind_stays(cache):
    young = artefact(cache, "young", days=2)
    plan = plan_cache_gc(cache, unused_for_s=30 * DAY)
    before = everything(cache)
    done, freed = collect_cache(cache, unused_for_s=30 * DAY)

    assert before - everything(cache) == before - NO_KIND - {str(young.relative_to(cache))}
    assert (plan.going, plan.size, plan.young, plan.busy) == (done.going, freed, 1, False)
    assert not (cache / INTERPRETER).exists()
    assert collect_cache(cache, unused_for_s=30 * DAY)[1] == 0


def test_what_is_named_stays_whatever_its_age(cache):
    file, base = artefact(cache, "wheel"), cache / "bases" / ("b" * 64)
    plan, _ = collect_cache(cache, unused_for_s=0, keep={file.name, base.name})

    assert plan.kept == 2
    assert file.exists()
    assert (base / "usr/bin/tool").exists()
    assert {each for each in everything(cache) if "b" * 64 not in each} == NO_KIND | {str(file.relative_to(cache))}


def test_asking_for_something_uses_it(cache):
    file, base = artefact(cache, "wheel"), cache / "bases" / ("b" * 64)

    assert is_cached(file, 5000)
    kept_tree(base, lambda _: pytest.fail("made again"))
    going = {each.path for each in plan_cache_gc(cache, unused_for_s=30 * DAY).going}

    assert not going & {str(path.relative_to(cache)) for path in (file, base)}
    assert INTERPRETER in going


def test_reading_something_uses_it_although_nobody_said_so(cache):
    file = artefact(cache, "wheel")
    os.utime(file, (time.time(), file.stat().st_mtime))  # as a file system notes a read

    assert str(file.relative_to(cache)) not in {each.path for each in plan_cache_gc(cache, unused_for_s=DAY).going}


def test_beside_a_build_nothing_of_the_last_day_goes_nor_what_it_could_miss(cache):
    recent = artefact(cache, "recent", days=0.5)
    put(cache, f"apt/{'c' * 32}/lists")
    building = in_use(cache)
    try:
        plan, _ = collect_cache(cache, unused_for_s=0)
    finally:
        os.close(building)

    assert plan.busy
    assert recent.exists()
    assert (cache / ".adopting-abc_12").exists()
    assert (cache / f"apt/{'c' * 32}/lists").exists()
    assert not (cache / f"bases/{'b' * 64}").exists()
    assert not artefact_path(cache, "wheel").exists()
    alone, _ = collect_cache(cache, unused_for_s=0)
    assert not alone.busy
    assert everything(cache) == NO_KIND


def artefact_path(cache, word):
    digits = hashlib.sha256(word.encode()).hexdigest()
    return cache / "sha256" / digits[:2] / digits


def test_who_begins_while_a_collection_runs_waits_for_its_end(cache):
    held = os.open(cache / "in-use", os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(held, fcntl.LOCK_EX)
    began = threading.Event()
    builder = threading.Thread(target=lambda: (os.close(in_use(cache)), began.set()))
    builder.start()

    assert not began.wait(0.05)
    os.close(held)
    assert began.wait(5)
    builder.join()


def test_a_file_that_somebody_holds_for_ever_holds_nobody_up_for_long(cache, monkeypatch):
    monkeypatch.setattr("envbuilder.store.cache._JUDGED_S", 0.03)
    file = artefact_path(cache, "wheel")
    held = os.open(file, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    before_s = time.monotonic()
    cached = is_cached(file, 5000)
    took_s = time.monotonic() - before_s
    os.close(held)

    assert cached
    assert 0.03 <= took_s < 5


def test_only_its_owner_can_say_that_a_cache_is_used(cache):
    os.close(in_use(cache))

    assert (cache / "in-use").stat().st_mode & 0o777 == 0o600


def test_beside_a_build_the_notes_of_debs_stay_and_so_does_what_was_noted_up_to_an_hour_late(cache):
    late = artefact(cache, "late", days=1.02)
    building = in_use(cache)
    try:
        collect_cache(cache, unused_for_s=0)
    finally:
        os.close(building)

    assert (cache / f"debs/{'d' * 64}.json.zst").exists()
    assert late.exists()


def test_a_base_that_is_being_made_stays(cache):
    record = os.open(cache / f"bases/{'b' * 64}.lock", os.O_RDWR)
    fcntl.flock(record, fcntl.LOCK_EX)
    _, freed = collect_cache(cache, unused_for_s=0)
    os.close(record)

    assert freed > 0
    assert (cache / f"bases/{'b' * 64}/usr/bin/tool").exists()


def test_links_are_not_followed_out_of_the_cache_nor_removed(tmp_path, cache):
    outside = tmp_path / "outside"
    for place in ("sha256/bb", "debs", "bases", "."):
        put(outside, f"{place}/{'b' * 64}")
    kept = everything(outside)
    digits = hashlib.sha256(b"link").hexdigest()
    (cache / "sha256/bb").symlink_to(outside / "sha256/bb")
    (cache / "sha256" / digits[:2]).mkdir(exist_ok=True)
    (cache / "sha256" / digits[:2] / digits).symlink_to(outside / ("b" * 64))
    shutil.rmtree(cache / "debs")
    (cache / "debs").symlink_to(outside / "debs")
    (cache / "bases" / ("f" * 64)).symlink_to(outside / "bases")
    os.mkfifo(cache / "sha256/aa" / ("9" * 64))

    collect_cache(cache, unused_for_s=0)

    assert everything(outside) == kept
    assert (cache / "sha256" / digits[:2] / digits).is_symlink()
    assert (cache / "bases" / ("f" * 64)).is_symlink()


def test_a_link_inside_a_tree_is_removed_and_not_followed(tmp_path, cache):
    outside = put(tmp_path, "outside/file")
    (cache / INTERPRETER / "usr/link").symlink_to(outside.parent)

    collect_cache(cache, unused_for_s=0)

    assert outside.exists()
    assert not (cache / INTERPRETER).exists()


def test_no_cache_is_an_empty_one(tmp_path):
    assert contents(tmp_path / "none") == []
    plan, freed = collect_cache(tmp_path / "none", unused_for_s=0)
    assert (plan.going, plan.busy, freed) == ((), False, 0)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").touch()
    assert not plan_cache_gc(tmp_path / "file", unused_for_s=0).busy


def test_a_cache_that_this_user_may_not_change_is_told(cache, monkeypatch):
    def refused(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(NotRemoved, match=r"cache: freed 0 bytes; 7 of 7 stay: .*: Permission denied") as told:
        collect_cache(cache, unused_for_s=0)

    assert (told.value.exit_code, told.value.hint) == (5, "Do it as the user whose cache it is.")


def test_one_file_that_stays_keeps_no_other(cache, monkeypatch):
    unlink = Path.unlink

    def refused(self, **more):
        if self.name == artefact_path(cache, "wheel").name:
            raise PermissionError(13, "Permission denied")
        unlink(self, **more)

    monkeypatch.setattr(Path, "unlink", refused)
    count = len(plan_cache_gc(cache, unused_for_s=0).going)
    with pytest.raises(NotRemoved, match=rf"cache: freed [1-9]\d* bytes; 1 of {count} stay: .*: Permission denied"):
        collect_cache(cache, unused_for_s=0)

    assert everything(cache) == NO_KIND | {str(artefact_path(cache, "wheel").relative_to(cache))}


def test_where_files_cannot_be_locked_their_time_alone_says(cache, monkeypatch):
    flock = fcntl.flock

    def read_only_ones_not(fd, how):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY and how & fcntl.LOCK_EX:
            raise OSError(errno.EBADF, "Bad file descriptor")  # as NFS does
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", read_only_ones_not)
    plan, _ = collect_cache(cache, unused_for_s=0)

    assert not plan.busy
    assert everything(cache) == NO_KIND


def test_a_tree_whose_removal_was_killed_is_unfinished_and_goes_the_next_time(cache):
    (cache / "bases" / f".{'b' * 64}.0123abcd").mkdir()
    (cache / "verify-abc12_xy").mkdir()
    found = {each.path for each in contents(cache) if each.kind == "unfinished"}

    assert {f"bases/.{'b' * 64}.0123abcd", "verify-abc12_xy"} <= found
    collect_cache(cache, unused_for_s=0)
    assert everything(cache) == NO_KIND
    assert not (cache / "verify-abc12_xy").exists()


def test_what_was_removed_between_is_no_error(cache, monkeypatch):
    plan = plan_cache_gc(cache, unused_for_s=0)
    monkeypatch.setattr("envbuilder.store.cache_gc._plan", lambda *_args, **_more: plan)
    _, first = collect_cache(cache, unused_for_s=0)
    _, second = collect_cache(cache, unused_for_s=0)

    assert (first, second) == (plan.size, 0)


ASKS = """
import sys; from pathlib import Path; from envbuilder.store.cache import in_use, is_cached
building = in_use(Path(sys.argv[1]))
files = [Path(sys.argv[1], "sha256", name[:2], name) for name in sys.stdin.readline().split()]
print("ready", flush=True)
while files[-1].exists():
    pass
for file in files:
    name = file.name
    if is_cached(file, 5000):
        file.open("rb").close(); print(name)
"""


def test_two_collections_beside_a_process_that_asks_take_nothing_that_it_was_given(tmp_path):
    cache = tmp_path / "cache"
    files = [artefact(cache, f"{number}") for number in range(600)]
    words = [sys.executable, "-c", ASKS, str(cache)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        asking.stdin.write(" ".join(file.name for file in reversed(files)) + "\n")
        asking.stdin.flush()
        asking.stdout.readline()
        collecting = [threading.Thread(target=collect_cache, args=(cache,), kwargs={"unused_for_s": 0}) for _ in "12"]
        for each in collecting:
            each.start()
        given, _ = asking.communicate()
        for each in collecting:
            each.join()

    assert asking.returncode == 0  # what it was given it could open
    assert {file.name for file in files if file.exists()} == set(given.split())


def test_what_another_user_owns_can_be_asked_for(cache, monkeypatch):
    monkeypatch.setattr(os, "utime", lambda *_args, **_more: (_ for _ in ()).throw(PermissionError(1, "not yours")))

    assert use(artefact_path(cache, "wheel")).st_size == 5000
    assert use(Path("/nonexistent")) is None
