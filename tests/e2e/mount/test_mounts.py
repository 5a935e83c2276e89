"""A mounted image is the image: every way of mounting, whatever is read, twice at once, until unmounted."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest

from envbuilder.layer.frames import CHUNK_SIZE
from envbuilder.mount.host.kernel import StillBusy
from envbuilder.mount.host.probe import chosen_mode, probe
from envbuilder.mount.mount import BadMountPoint, mount, open_mount
from envbuilder.mount.state import reap, statuses
from envbuilder.mount.unmount import NotMounted, unmount
from envbuilder.testing.nodes import BIG

#: Chunks of the test image that a guess may have before a link is known: 1.6 MB (fetch/link.py).
MOST_GUESSED = 7
MODES = ["erofs", "loop", "fuse", "unpack"]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("writable", [False, True], ids=["read-only", "writable"])
@pytest.mark.parametrize("mode", MODES)
def test_every_way_of_mounting_shows_the_same_tree(node, mode, writable):
    settings = replace(node.settings, mode=mode)
    with open_mount(node.image, node.source, settings, writable=writable) as mounted:
        data = mounted.directory / "data"

        assert sorted(path.name for path in data.iterdir()) == ["big", "link", "second", "small"]
        assert (data / "big").read_bytes() == BIG
        assert (data / "second").read_bytes() == BIG[::-1]
        assert (data / "link").read_bytes() == BIG
        assert (data / "small").stat().st_mode & 0o777 == 0o644
        if writable:
            (data / "small").write_text("changed")
            assert (data / "small").read_text() == "changed"
        else:
            with pytest.raises(OSError, match="Read-only"):
                (data / "new").write_text("x")


@pytest.mark.parametrize("mode", ["erofs", "loop", "fuse"])
def test_any_offset_and_size_equal_the_slice_of_the_file(node, mode):
    random = Random(2)
    edges = [0, 1, 4095, 4096, CHUNK_SIZE - 1, CHUNK_SIZE, CHUNK_SIZE + 1, len(BIG) - 1, len(BIG), len(BIG) + 5]
    reads = [(offset, size) for offset in edges for size in (1, 4096, CHUNK_SIZE + 2)]
    reads += [(random.randrange(len(BIG)), random.randrange(1, 1 << 20)) for _ in range(60)]
    random.shuffle(reads)
    with open_mount(node.image, node.source, replace(node.settings, mode=mode)) as mounted:
        file = os.open(mounted.directory / "data/second", os.O_RDONLY)
        try:
            wrong = [
                (offset, size)
                for offset, size in reads
                if os.pread(file, size, offset) != BIG[::-1][offset : offset + size]
            ]
        finally:
            os.close(file)

    assert wrong == []


def test_only_what_is_read_is_fetched(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        before = mounted.counters()
        names = sum(len(files) for _, _, files in os.walk(mounted.directory))
        walked = mounted.counters()
        with open(mounted.directory / "data/big", "rb") as file:
            file.seek(2 << 20)
            file.read(10)
        read = mounted.counters()

    assert names > 10
    assert before.fetched_chunks == walked.fetched_chunks == 0
    # Of 40 chunks; how much of the guess is here yet is chance.
    assert 1 <= read.fetched_chunks <= 1 + MOST_GUESSED


def test_a_second_start_needs_no_source_for_what_was_read_before(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/second").read_bytes()
    node.source.switch("away")
    with open_mount(node.image, node.source, node.settings) as mounted:
        assert (mounted.directory / "data/second").read_bytes() == BIG[::-1]


def test_a_full_start_needs_neither_source_nor_worker_afterwards(node):
    told = []
    with open_mount(
        node.image, node.source, node.settings, full=True, progress=lambda *now: told.append(now)
    ) as mounted:
        node.source.switch("away")

        assert mounted.how == "erofs direct"
        assert (mounted.directory / "data/big").read_bytes() == BIG
    assert told[-1][0] <= told[-1][1]
    assert len(node.source.ranges()) < 30


def test_two_mounts_of_one_image_at_once_share_what_was_fetched(node):
    with open_mount(node.image, node.source, node.settings) as one:
        with open_mount(node.image, node.source, node.settings, writable=True) as two:
            (one.directory / "data/big").read_bytes()
            (two.directory / "data/big").write_bytes(b"mine")

            assert (one.directory / "data/big").read_bytes() == BIG
            assert len(statuses(node.settings.state_dir)) == 2
        assert (one.directory / "data/second").read_bytes() == BIG[::-1]


def test_a_mount_stays_until_it_is_unmounted(node):
    directory = node.folder / "here"
    directory.mkdir()
    mount(node.image, node.source, node.settings, directory, writable=True)
    (directory / "new").write_text("x")
    reap(node.settings.state_dir)
    there = (directory / "data/big").read_bytes() == BIG
    [status] = statuses(node.settings.state_dir)
    unmount(directory, node.settings.state_dir)

    assert there
    assert status.alive
    assert status.record.directory == str(directory)
    assert list(directory.iterdir()) == []
    with pytest.raises(NotMounted):
        unmount(directory, node.settings.state_dir)


def test_a_dry_run_of_unmount_ends_nothing_and_refuses_what_is_not_mounted(node):
    directory = node.folder / "here"
    directory.mkdir()
    words = [sys.executable, "-m", "envbuilder", "unmount", str(directory), "--dry-run", "--json"]
    environ = {**os.environ, "ENVBUILDER_STATE": str(node.settings.state_dir)}
    before = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    mount(node.image, node.source, node.settings, directory)
    during = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    still = (directory / "data/small").read_text()
    unmount(directory, node.settings.state_dir)

    assert (before.returncode, during.returncode) == (2, 0)
    assert "nothing is mounted there" in before.stderr
    assert json.loads(during.stdout) == {"directory": str(directory)}
    assert still == "small\n"


def test_a_mount_in_use_is_not_unmounted_unless_forced(node):
    directory = node.folder / "here"
    directory.mkdir()
    mount(node.image, node.source, node.settings, directory)
    with open(directory / "data/small") as file:
        with pytest.raises(StillBusy):
            unmount(directory, node.settings.state_dir)
        still = file.read()
        unmount(directory, node.settings.state_dir, force=True)

    assert still == "small\n"


def test_umount_by_hand_ends_the_processes(node, require_tool):
    directory = node.folder / "here"
    directory.mkdir()
    mounted = mount(node.image, node.source, node.settings, directory)
    handle = os.pidfd_open(mounted.keeper)
    subprocess.run([require_tool("umount"), directory], check=True)
    import select

    ended = select.select([handle], [], [], 10)[0]
    os.close(handle)

    assert ended


def test_a_mount_point_must_be_an_empty_directory(node):
    (node.folder / "full").mkdir()
    (node.folder / "full/x").write_text("x")
    for name in ("full", "missing"):
        with (
            pytest.raises(BadMountPoint, match=name),
            open_mount(node.image, node.source, node.settings, directory=node.folder / name),
        ):
            pass


def test_many_readers_at_once_get_the_right_bytes(node):
    import threading

    digests = set()
    with open_mount(node.image, node.source, node.settings) as mounted:

        def body(number: int) -> None:
            name = ("big", "second")[number % 2]
            with open(mounted.directory / "data" / name, "rb", buffering=0) as file:
                data = b"".join(iter(lambda: file.read(70_000), b""))
            digests.add((name, hashlib.sha256(data).hexdigest()))

        threads = [threading.Thread(target=body, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert digests == {("big", hashlib.sha256(BIG).hexdigest()), ("second", hashlib.sha256(BIG[::-1]).hexdigest())}


def test_the_host_s_way_of_mounting_is_found_by_trying(node):
    found = probe(node.settings.state_dir, node.settings.cache_dir)

    assert chosen_mode(found) in MODES
    assert all(capability.why for capability in found)
