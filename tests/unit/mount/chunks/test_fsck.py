"""A chunk store whose disk changed what was written: what fsck finds, and what is believed afterwards."""

import os

import pytest

from envbuilder.digest import Digest
from envbuilder.mount.chunks.fsck import check_store
from envbuilder.mount.chunks.store import ChunkStore

DIGEST = Digest.of(b"layer")
STARTS, SIZE = (0, 4096, 8192), 12000
CHUNKS = (b"a" * 4096, b"b" * 4096, b"c" * 3808)


@pytest.fixture
def store(tmp_path) -> ChunkStore:
    made = ChunkStore(tmp_path)
    blob = made.open(DIGEST, STARTS, SIZE)
    for number, data in enumerate(CHUNKS):
        blob.write(number, data)
    blob.flush()
    blob.close()
    return made


def alter(store: ChunkStore, offset: int) -> None:
    with (store.blob(DIGEST) / "data").open("r+b") as data:
        data.seek(offset)
        data.write(b"!")


def test_a_store_that_is_what_it_was_is_clean(store):
    report = check_store(store, repair=True)

    assert (report.checked, report.damages) == (3, ())
    assert store.is_complete(DIGEST, SIZE)


def test_one_altered_byte_is_found_and_its_chunk_forgotten(store):
    alter(store, 5000)
    [damage] = check_store(store, repair=True).damages
    after = store.open(DIGEST, STARTS, SIZE)

    assert damage.chunks == (1,)
    assert not store.is_complete(DIGEST, SIZE)
    assert list(after.missing(0, 2)) == [1]
    after.close()


def test_without_repair_nothing_is_changed(store):
    alter(store, 5000)
    before = {file.name: file.read_bytes() for file in store.blob(DIGEST).iterdir()}
    report = check_store(store, repair=False)

    assert len(report.damages) == 1
    assert {file.name: file.read_bytes() for file in store.blob(DIGEST).iterdir()} == before


def test_a_process_that_has_the_blob_open_forgets_the_chunk_too(store):
    blob = store.open(DIGEST, STARTS, SIZE)
    alter(store, 9000)
    check_store(store, repair=True)

    assert not blob.has(2, 2)
    blob.close()


def test_a_chunk_that_came_back_is_clean_again(store):
    alter(store, 0)
    check_store(store, repair=True)
    blob = store.open(DIGEST, STARTS, SIZE)
    blob.write(0, CHUNKS[0])
    blob.flush()
    blob.close()

    assert check_store(store, repair=True).damages == ()
    assert store.is_complete(DIGEST, SIZE)


@pytest.mark.parametrize("name", ["starts", "durable"])
def test_maps_of_a_wrong_size_make_the_blob_void(store, name):
    (store.blob(DIGEST) / name).write_bytes(b"\1" * 5)
    [damage] = check_store(store, repair=True).damages

    assert name in damage.void
    assert not store.is_complete(DIGEST, SIZE)


def test_data_that_were_cut_are_found(store):
    os.truncate(store.blob(DIGEST) / "data", 9000)
    [damage] = check_store(store, repair=True).damages

    assert damage.chunks == (2,)


def test_chunks_that_are_not_durable_yet_are_not_judged(tmp_path):
    store = ChunkStore(tmp_path)
    blob = store.open(DIGEST, STARTS, SIZE)
    blob.write(0, CHUNKS[0])
    report = check_store(store, repair=True)

    assert report.damages == ()
    assert report.unchecked == 1
    assert blob.has(0, 0)
    blob.close()
