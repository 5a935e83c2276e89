"""Several mounts of a node and one registry: together they have so many connections, and no read starves."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.mount import open_mount
from envbuilder.mount.settings import MountSettings
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.nodes import BIG
from envbuilder.testing.registry import FakeRegistry

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]
MOUNTS, LIMIT = 4, 4


class Busy:
    """A fault that takes a while, and counts how many requests it has at a time."""

    def __init__(self, seconds):
        self.seconds, self.now, self.most, self.lock = seconds, 0, 0, threading.Lock()

    def __call__(self, _request, reply):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1
        return reply


@pytest.fixture
def registry():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def target(registry, layout):
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(registry.host, "a/b"), client, writable=True)
        source = LayoutTarget(layout)
        copy(source, source.lookup("test"), target, tag="1")
        yield target


@pytest.fixture
def starts(target, tmp_path):
    """Mounts of one node, each with a chunk store of its own, so that each fetches all."""
    image = open_image(target, target.lookup("1"), Platform("x86_64"))
    settings = MountSettings(
        state_dir=tmp_path / "state", cache_dir=tmp_path, background=True, node_connections=LIMIT, wait_limit_s=30.0
    )
    with ExitStack() as stack:
        yield lambda number, *, full=False, **options: stack.enter_context(
            open_mount(image, target, replace(settings, cache_dir=tmp_path / f"cache{number}", **options), full=full)
        )


@pytest.mark.parametrize("limit", [LIMIT, 0], ids=["limited", "without"])
def test_full_pulls_at_once_have_no_more_connections_than_the_node_may(registry, starts, limit):
    busy = Busy(0.1)
    registry.fault("GET", "/blobs/", busy, only=lambda request: "range" in request.headers)
    with ThreadPoolExecutor(MOUNTS) as pool:
        opened = [pool.submit(starts, number, full=True, node_connections=limit) for number in range(MOUNTS)]
        mounts = [each.result() for each in opened]

    assert [(each.directory / "data/second").read_bytes() for each in mounts] == [BIG[::-1]] * MOUNTS
    # A quarter is for reads, of which there were none.
    assert (busy.most <= LIMIT - LIMIT // 4) == bool(limit)


def test_reads_of_many_mounts_at_once_have_one_connection_each_beside_the_node_s(registry, starts):
    mounts = [starts(number, background=False, node_connections=1) for number in range(MOUNTS)]
    busy = Busy(0.1)
    registry.fault("GET", "/blobs/", busy, only=lambda request: "range" in request.headers)
    readers = [
        subprocess.Popen(["cat", mounted.directory / "data" / name], stdout=subprocess.PIPE)
        for mounted in mounts
        for name in ("big", "second")
    ]
    got = [reader.communicate(timeout=60)[0] for reader in readers]

    assert got == [BIG, BIG[::-1]] * MOUNTS
    assert busy.most <= 1 + MOUNTS


def hold(tmp_path, host):
    """A process that has every slot of the node."""
    code = (
        "import sys, signal\nfrom pathlib import Path\nfrom envbuilder.mount.fetch.slots import Slots\n"
        f"slots = Slots(Path(sys.argv[1]), {LIMIT})\n"
        f"print([slots.take(reads=True) for _ in range({LIMIT})], flush=True)\nsignal.pause()\n"
    )
    file = tmp_path / "state/connections" / host
    holder = subprocess.Popen([sys.executable, "-c", code, file], stdout=subprocess.PIPE, text=True)
    assert sorted(json.loads(holder.stdout.readline())) == list(range(LIMIT))
    return holder


def test_reads_go_on_though_a_stopped_process_has_every_slot_and_the_rest_when_it_is_killed(registry, starts, tmp_path):
    holder = hold(tmp_path, registry.host)
    holder.send_signal(signal.SIGSTOP)
    mounted = starts(0)
    begun = time.monotonic()
    first = (mounted.directory / "data/big").read_bytes()
    took_s = time.monotonic() - begun
    in_background = mounted.counters().background_chunks
    holder.kill()
    holder.communicate()
    end = time.monotonic() + 20
    while mounted.counters().background_chunks == 0 and time.monotonic() < end:
        time.sleep(0.02)

    assert first == BIG
    assert took_s < 10
    assert in_background == 0
    assert mounted.counters().background_chunks > 0
