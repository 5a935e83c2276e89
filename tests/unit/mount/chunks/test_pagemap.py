"""Single pages of chunks: what is said to be here is, in this boot and for every process."""

import fcntl
import os
import threading

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.frames import CHUNK_SIZE
from envbuilder.layer.pages import GROUP_PAGES, GROUP_SIZE, PAGE_SIZE
from envbuilder.mount.chunks.pagemap import PageMap
from envbuilder.mount.chunks.store import ChunkStore

DIGEST = Digest.of(b"layer")
SIZE = 3 * CHUNK_SIZE
#: Of the second chunk.
PAGE = CHUNK_SIZE // PAGE_SIZE + 5


def open_blob(folder):
    return ChunkStore(folder).open(DIGEST, range(0, SIZE, CHUNK_SIZE), SIZE)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (63, 1), (64, 64), (10, 20), (63, 2), (60, 190), (255, 1)])
def test_pages_are_here_once_they_were_added(tmp_path, first, count):
    pages = PageMap(tmp_path / "map", 4 * GROUP_SIZE - 5)
    pages.add(first, count)

    assert pages.has(first, first + count - 1)
    assert not pages.has(0, 4 * GROUP_PAGES - 1)
    assert all(pages.has(page, page) == (first <= page < first + count) for page in range(4 * GROUP_PAGES))


def test_another_process_sees_pages_and_their_bytes(tmp_path):
    one, other = open_blob(tmp_path), open_blob(tmp_path)
    one.write_pages(PAGE, memoryview(b"x" * 2 * PAGE_SIZE), 2)
    data = bytearray(2 * PAGE_SIZE)
    other.read(PAGE * PAGE_SIZE, memoryview(data))

    assert other.with_pages().has(PAGE, PAGE + 1)
    assert other.has_pages(PAGE, PAGE + 1)
    assert not other.has_pages(PAGE, PAGE + 2)
    assert not other.has(1, 1)
    assert data == b"x" * 2 * PAGE_SIZE
    for blob in (one, other):
        blob.close()


def test_pages_of_a_whole_chunk_are_here(tmp_path):
    blob = open_blob(tmp_path)
    blob.write(1, bytes(CHUNK_SIZE))
    last = 2 * CHUNK_SIZE // PAGE_SIZE - 1

    assert blob.has_pages(PAGE - 5, last)
    assert not blob.has_pages(PAGE - 5, last + 1)
    assert not blob.has_pages(PAGE - 6, last)
    blob.close()


def test_pages_of_another_boot_are_not_believed(tmp_path):
    blob = open_blob(tmp_path)
    blob.write_pages(PAGE, memoryview(bytes(PAGE_SIZE)), 1)
    blob.close()
    for kind in ("pages", "present"):
        (file,) = blob.folder.glob(f"{kind}.*")
        file.rename(blob.folder / f"{kind}.another-boot")
    again = open_blob(tmp_path)

    assert not again.with_pages().has(PAGE, PAGE)
    assert list(blob.folder.glob("*.another-boot")) == []
    again.close()


def test_a_map_of_another_size_is_made_anew(tmp_path):
    (tmp_path / "map").write_bytes(b"\xff" * 24)

    assert not PageMap(tmp_path / "map", 2 * GROUP_SIZE).has(64, 64)


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
