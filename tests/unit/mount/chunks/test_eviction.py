"""What goes when the chunk store is full, and what never does."""

import fcntl
import os
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.mount.chunks.eviction import Quota, enforce, evict, plan_eviction, remove_going, usage
from envbuilder.mount.chunks.store import ChunkStore, StoredBlob

CHUNK = 64 << 10


def digest(name: str) -> Digest:
    return Digest.of(name.encode())


def keep(store: ChunkStore, name: str, *, used_at: float) -> StoredBlob:
    """A blob of two chunks, last used at ``used_at``."""
    blob = store.open(digest(name), range(0, 2 * CHUNK, CHUNK), 2 * CHUNK)
    for chunk in (0, 1):
        blob.write(chunk, name.encode() * (CHUNK // len(name)))
    os.utime(store.blob(digest(name)) / "lock", (used_at, used_at))
    return blob


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    """Three blobs that nobody uses: "a" is the longest unused."""
    made = ChunkStore(tmp_path)
    for used_at, name in ((300.0, "c"), (100.0, "a"), (200.0, "b")):
        keep(made, name, used_at=used_at).close()
    return made


def left(store: ChunkStore) -> set[str]:
    return {name for name in "abc" if store.blob(digest(name)).exists()}


def test_the_longest_unused_goes_first(store):
    plan = plan_eviction(usage(store), sum(blob.size for blob in usage(store)) - 1)
    freed = evict(store, plan)

    assert [blob.digest for blob in plan.blobs] == [digest("a").hex]
    assert left(store) == {"b", "c"}
    assert freed == plan.size >= 2 * CHUNK


def test_nothing_goes_while_there_is_room(store):
    assert plan_eviction(usage(store), 1 << 30).blobs == ()
    assert plan_eviction(usage(store), None).blobs == ()


def test_opening_a_blob_makes_it_the_latest(store):
    store.open(digest("a"), range(0, 2 * CHUNK, CHUNK), 2 * CHUNK).close()

    assert [blob.digest for blob in usage(store)][-1] == digest("a").hex


@pytest.mark.parametrize("how", ["open", "held", "named by a mount"])
def test_what_is_in_use_stays(store, how):
    blob = store.open(digest("a"), range(0, 2 * CHUNK, CHUNK), 2 * CHUNK) if how == "open" else None
    held = store.hold(digest("a")) if how == "held" else -1
    named = {digest("a").hex} if how == "named by a mount" else set()
    plan = enforce(store, Quota(size=1), named)

    assert left(store) == {"a"}
    assert plan.over >= 2 * CHUNK
    if blob is not None:
        blob.close()
    if held >= 0:
        os.close(held)


def test_a_blob_taken_into_use_after_the_plan_stays(store):
    plan = plan_eviction(usage(store), 0)
    held = store.hold(digest("b"))
    evict(store, plan)

    assert left(store) == {"b"}
    os.close(held)


def test_a_file_system_that_still_reads_an_evicted_blob_reads_its_bytes(store):
    with (store.blob(digest("a")) / "data").open("rb") as data:
        enforce(store, Quota(size=1))

        assert data.read() == b"a" * 2 * CHUNK


def test_an_evicted_blob_is_made_anew_by_who_waited_for_its_lock(store, tmp_path):
    folder = store.blob(digest("a"))
    lock = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        os.close(lock)
        blob = store.open(digest("a"), range(0, 2 * CHUNK, CHUNK), 2 * CHUNK)
        os._exit(0 if blob.missing_count == 2 and folder.exists() else 1)
    folder.rename(tmp_path / "blobs" / ".going.a")
    os.close(lock)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_a_killed_eviction_left_goes_with_the_next(store):
    store.blob(digest("a")).rename(store.directory / "blobs" / ".going.a.1")
    remove_going(store)

    assert {path.name for path in (store.directory / "blobs").iterdir()} == {digest("b").hex, digest("c").hex}


def test_a_quota_is_bytes_or_a_share_of_the_file_system(tmp_path):
    found = os.statvfs(tmp_path)

    assert Quota(size=5).limit(tmp_path / "not" / "there") == 5
    assert Quota(share=0.5).limit(tmp_path) == found.f_blocks * found.f_frsize // 2
    assert Quota().limit(tmp_path) is None
