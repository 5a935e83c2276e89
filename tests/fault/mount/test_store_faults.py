"""The chunk store under mounts: full, evicted from, corrupted on disk, and two starts at once."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.mount.chunks.eviction import Quota, enforce, usage
from envbuilder.mount.chunks.fsck import check_store
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.mount import mount, open_mount
from envbuilder.mount.state import in_use, reap
from envbuilder.mount.unmount import unmount
from envbuilder.testing.nodes import BIG, kill_at_once

pytestmark = pytest.mark.slow

ALL_GO = Quota(size=1)


def store_of(node) -> ChunkStore:
    return ChunkStore(node.settings.cache_dir / "chunks")


@pytest.mark.parametrize("full", [False, True])
def test_what_a_mount_reads_is_never_evicted(node, full):
    with open_mount(node.image, node.source, node.settings, full=full) as mounted:
        (mounted.directory / "data/big").read_bytes()
        enforce(store_of(node), ALL_GO)
        node.source.switch("away")

        assert (mounted.directory / "data/big").read_bytes() == BIG
    node.source.switch("away", "")


def test_what_nobody_uses_is_evicted_and_fetched_again_by_the_next_start(node):
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    enforce(store_of(node), ALL_GO)
    emptied = usage(store_of(node))
    with open_mount(node.image, node.source, node.settings) as mounted:
        again = (mounted.directory / "data/big").read_bytes()

    assert emptied == ()
    assert again == BIG


def test_a_mount_whose_processes_were_all_killed_still_protects_its_layers(node):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    (directory / "data/big").read_bytes()
    worker = int(mounted.folder.worker.read_text().split()[0])
    kill_at_once([mounted.keeper, mounted.supervisor, worker])
    end = time.monotonic() + 10
    while mounted.folder.is_alive() or any(blob.in_use for blob in usage(store_of(node))):
        assert time.monotonic() < end, "killed processes stay"
        time.sleep(0.01)
    enforce(store_of(node), ALL_GO, in_use(node.settings.state_dir))
    kept = len(usage(store_of(node)))
    reap(node.settings.state_dir)
    enforce(store_of(node), ALL_GO, in_use(node.settings.state_dir))

    assert kept > 0
    assert usage(store_of(node)) == ()


def test_a_store_corrupted_on_disk_is_found_and_the_next_start_reads_what_was_built(node):
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    for blob in usage(store_of(node)):
        folder = store_of(node).directory / "blobs" / blob.digest
        # The process that makes it durable was ended with the mount.
        opened = store_of(node)
        opened.flush(Digest(f"sha256:{blob.digest}"), blob.whole)
        with (folder / "data").open("r+b") as data:
            data.seek(blob.whole // 2)
            byte = data.read(1)
            data.seek(blob.whole // 2)
            data.write(bytes([byte[0] ^ 1]))
    report = check_store(store_of(node), repair=True)
    with open_mount(node.image, node.source, node.settings) as mounted:
        read = [(mounted.directory / "data" / name).read_bytes() for name in ("big", "second")]

    assert len(report.damages) == 2
    assert read == [BIG, BIG[::-1]]
    assert check_store(store_of(node), repair=False).damages == ()


def test_two_starts_of_one_image_and_an_eviction_at_once_read_what_was_built(node):
    wrong = []

    def start() -> None:
        with open_mount(node.image, node.source, node.settings) as mounted:
            if (mounted.directory / "data/big").read_bytes() != BIG:
                wrong.append(mounted.id)

    starts = [threading.Thread(target=start) for _ in range(3)]
    for each in starts:
        each.start()
    while any(each.is_alive() for each in starts):
        enforce(store_of(node), ALL_GO, in_use(node.settings.state_dir))
        time.sleep(0.01)

    assert wrong == []


def test_two_hundred_readers_at_once(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        script = 'for i in $(seq 200); do cksum < "$0" & done; wait'
        done = subprocess.run(
            ["sh", "-c", script, mounted.directory / "data/big"], capture_output=True, text=True, check=True
        )

    assert len(done.stdout.splitlines()) == 200
    assert len(set(done.stdout.splitlines())) == 1


def test_an_unmount_under_load_gives_errors_and_leaves_nothing(node):
    directory = node.folder / "here"
    directory.mkdir()
    mount(node.image, node.source, replace(node.settings, wait_limit_s=60.0), directory)
    (directory / "data/small").read_bytes()
    node.source.switch("away")
    readers = [
        subprocess.Popen(["cat", directory / "data" / name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("big", "second") * 5
    ]
    time.sleep(0.2)
    unmount(directory, node.settings.state_dir, force=True)

    assert all(reader.wait(10) != 0 for reader in readers)
    assert node.leftovers() == []


def test_an_eviction_that_is_killed_in_the_middle_leaves_a_store_that_is_right(node):
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    blobs = store_of(node).directory / "blobs"
    for folder in blobs.iterdir():
        for number in range(1000):  # so that removing it takes a while
            (folder / f"padding{number}").touch()
    code = (
        "import sys; from pathlib import Path\n"
        "from envbuilder.mount.chunks.eviction import Quota, enforce\n"
        "from envbuilder.mount.chunks.store import ChunkStore\n"
        "enforce(ChunkStore(Path(sys.argv[1])), Quota(size=1))\n"
    )
    evicting = subprocess.Popen([sys.executable, "-c", code, store_of(node).directory])
    while not list(blobs.glob(".going.*")):
        assert evicting.poll() is None
    evicting.kill()
    evicting.wait()
    half = list(blobs.glob(".going.*"))
    with open_mount(node.image, node.source, node.settings) as mounted:
        read = [(mounted.directory / "data" / name).read_bytes() for name in ("big", "second")]
    enforce(store_of(node), ALL_GO)

    assert len(half) == 1
    assert read == [BIG, BIG[::-1]]
    assert list(blobs.iterdir()) == []


@pytest.mark.parametrize("year", [1971, 2100])
def test_blobs_last_used_while_the_clock_was_wrong_are_evicted_like_others(node, year):
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    (first, *_) = (store_of(node).directory / "blobs").iterdir()
    os.utime(first / "lock", (0, (year - 1970) * 365 * 86400))
    with open_mount(node.image, node.source, node.settings) as mounted:
        enforce(store_of(node), ALL_GO)
        used = (mounted.directory / "data/big").read_bytes()
        kept = len(usage(store_of(node)))
    enforce(store_of(node), ALL_GO)

    assert used == BIG
    assert kept == 2
    assert usage(store_of(node)) == ()
