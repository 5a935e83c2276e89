"""The chunk store: what is believed after a crash, a power cut, another process, a full disk."""

import os
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.mount.chunks.store import ChunkStore, StoredBlob, StoreRefused

DIGEST = Digest.of(b"layer")
STARTS, SIZE = (0, 4096, 8192), 12000
CHUNKS = (b"a" * 4096, b"b" * 4096, b"c" * 3808)


def opened(directory: Path) -> StoredBlob:
    return ChunkStore(directory).open(DIGEST, STARTS, SIZE)


def reboot(directory: Path) -> None:
    """What the next boot finds: another boot id."""
    for present in (directory / "blobs" / DIGEST.hex).glob("present.*"):
        present.rename(present.with_name("present.of-another-boot"))


def test_a_chunk_is_there_after_it_was_written_and_not_before(tmp_path):
    blob = opened(tmp_path)
    before = blob.has(1, 1)
    blob.write(1, CHUNKS[1])
    data = bytearray(4096)
    blob.read(4096, memoryview(data))

    assert not before
    assert blob.has(1, 1)
    assert not blob.has(0, 1)
    assert list(blob.missing(0, 2)) == [0, 2]
    assert blob.missing_count == 2
    assert bytes(data) == CHUNKS[1]


def test_another_process_that_has_the_blob_open_sees_the_chunk(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path)
    one.write(2, CHUNKS[2])

    assert other.has(2, 2)


def test_chunks_survive_a_killed_process(tmp_path):
    opened(tmp_path).write(0, CHUNKS[0])  # neither flushed nor closed

    assert opened(tmp_path).has(0, 0)


def test_chunks_that_were_not_flushed_are_not_believed_after_a_power_cut(tmp_path):
    blob = opened(tmp_path)
    blob.write(0, CHUNKS[0])
    blob.flush()
    blob.write(1, CHUNKS[1])
    reboot(tmp_path)
    after = opened(tmp_path)

    assert after.has(0, 0)
    assert not after.has(1, 1)


def test_a_blob_is_complete_when_every_chunk_is_here(tmp_path):
    store, blob = ChunkStore(tmp_path), opened(tmp_path)
    for number in (0, 1):
        blob.write(number, CHUNKS[number])
    partly = store.is_complete(DIGEST, SIZE)
    blob.write(2, CHUNKS[2])

    assert not partly
    assert store.is_complete(DIGEST, SIZE)
    assert not store.is_complete(DIGEST, SIZE + 1)
    assert (store.blob(DIGEST) / "data").read_bytes() == b"".join(CHUNKS)


def test_a_complete_blob_survives_a_power_cut_once_it_was_flushed(tmp_path):
    store, blob = ChunkStore(tmp_path), opened(tmp_path)
    for number, data in enumerate(CHUNKS):
        blob.write(number, data)
    reboot(tmp_path)
    unflushed = store.is_complete(DIGEST, SIZE)
    again = opened(tmp_path)
    for number, data in enumerate(CHUNKS):
        again.write(number, data)
    store.flush(DIGEST, SIZE)
    reboot(tmp_path)

    assert not unflushed
    assert store.is_complete(DIGEST, SIZE)


def test_two_that_flush_do_not_undo_each_other(tmp_path):
    one, other = opened(tmp_path), opened(tmp_path)
    one.write(0, CHUNKS[0])
    one.flush()
    other.write(1, CHUNKS[1])
    other.flush()
    reboot(tmp_path)

    assert list(opened(tmp_path).missing(0, 2)) == [2]


def test_a_data_file_of_another_size_makes_every_mark_void(tmp_path):
    blob = opened(tmp_path)
    for number, data in enumerate(CHUNKS):
        blob.write(number, data)
    blob.flush()
    blob.close()
    os.truncate(ChunkStore(tmp_path).blob(DIGEST) / "data", 100)
    after = opened(tmp_path)

    assert not ChunkStore(tmp_path).is_complete(DIGEST, SIZE)
    assert after.missing_count == 3


def test_a_store_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "blobs").write_text("in the way")

    with pytest.raises(StoreRefused, match="Not a directory"):
        opened(tmp_path)


def test_the_files_belong_to_one_user(tmp_path):
    opened(tmp_path).write(0, CHUNKS[0])
    folder = ChunkStore(tmp_path).blob(DIGEST)

    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o077 for file in folder.iterdir()} == {0}
