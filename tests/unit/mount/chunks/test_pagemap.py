"""Single pages of chunks: what is said to be here is, in this boot and for every process."""

import fcntl
import os
import threading

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.frames import CHUNK_SIZE
from envbuilder.layer.pages import PAGE_SIZE
from envbuilder.mount.chunks.pagemap import PageMap
from envbuilder.mount.chunks.store import ChunkStore

DIGEST = Digest.of(b"layer")
SIZE = 3 * CHUNK_SIZE


def open_blob(folder):
    return ChunkStore(folder).open(DIGEST, range(0, SIZE, CHUNK_SIZE), SIZE)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (63, 1), (0, 64), (10, 20)])
def test_pages_are_here_once_they_were_added(tmp_path, first, count):
    pages = PageMap(tmp_path / "map", 2)
    pages.add(1, first, count)

    assert pages.has(1, first, first + count - 1)
    assert not pages.has(0, first, first + count - 1)
    assert all(pages.has(1, page, page) == (first <= page < first + count) for page in range(64))


def test_another_process_sees_pages_and_their_bytes(tmp_path):
    one, other = open_blob(tmp_path), open_blob(tmp_path)
    one.write_pages(1, 5, memoryview(b"x" * 2 * PAGE_SIZE), 2)
    data = bytearray(2 * PAGE_SIZE)
    other.read(CHUNK_SIZE + 5 * PAGE_SIZE, memoryview(data))

    assert other.with_pages().has(1, 5, 6)
    assert not other.has(1, 1)
    assert data == b"x" * 2 * PAGE_SIZE
    for blob in (one, other):
        blob.close()


def test_pages_of_another_boot_are_not_believed(tmp_path):
    blob = open_blob(tmp_path)
    blob.write_pages(1, 5, memoryview(bytes(PAGE_SIZE)), 1)
    blob.close()
    for kind in ("pages", "present"):
        (file,) = blob.folder.glob(f"{kind}.*")
        file.rename(blob.folder / f"{kind}.another-boot")
    again = open_blob(tmp_path)

    assert not again.with_pages().has(1, 5, 5)
    assert list(blob.folder.glob("*.another-boot")) == []
    again.close()


def test_a_map_of_another_size_is_made_anew(tmp_path):
    (tmp_path / "map").write_bytes(b"\xff" * 24)

    assert not PageMap(tmp_path / "map", 2).has(1, 0, 0)


def test_who_opens_the_map_waits_for_who_makes_it(tmp_path):
    blob = open_blob(tmp_path)
    lock = os.open(blob.folder / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    opening = threading.Thread(target=blob.with_pages)
    opening.start()
    opening.join(0.05)
    waited = opening.is_alive()
    os.close(lock)
    opening.join(10)

    assert waited
    assert blob.pages is not None
    blob.close()
