"""A registry that misbehaves under a mount: readers wait, get what was built, or get an error that the log explains."""

import hashlib
import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.mount import MountSettings, open_mount
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.nodes import BIG, Node, make_node
from envbuilder.testing.registry import FakeRegistry, Reply, body, cut, drip, endless
from envbuilder.testing.serving import HttpServer

pytestmark = pytest.mark.slow

BLOBS = "/blobs/"


def is_part(request) -> bool:
    return "range" in request.headers


def damaged(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.fixture
def registry():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def node(layout, registry, tmp_path):
    """In place of the usual one: its source is ``registry``, whose client is quick to give up."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    client = RegistryClient(HttpSettings(idle_timeout_s=1.0, retry_budget_s=0.0))
    target = RegistryTarget(RegistryReference(registry.host, "a/b"), client, writable=True)
    source = LayoutTarget(layout)
    what = source.lookup("test")
    copy(source, what, target)
    settings = MountSettings(state_dir=tmp_path / "state", cache_dir=tmp_path / "cache", wait_limit_s=20.0)
    made = Node(open_image(target, what, Platform("x86_64")), target, settings, tmp_path)
    yield made
    client.close()
    registry.mend()
    assert made.leftovers() == []


def read_slowly(file, seconds: float) -> bytes:
    """The whole of ``file``, in pieces, as a job that computes in between."""
    parts = []
    with open(file, "rb", buffering=0) as stream:
        while part := stream.read(256 << 10):
            parts.append(part)
            time.sleep(seconds * len(part) / len(BIG))
    return b"".join(parts)


@pytest.mark.parametrize(
    "fault",
    [cut(100_000), body(damaged), body(lambda data: data[:99]), endless],
    ids=["cut", "altered", "short", "endless"],
)
def test_answers_that_are_wrong_a_few_times_are_fetched_again(node, registry, fault):
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/small").read_bytes()
        registry.fault("GET", BLOBS, fault, times=3, only=is_part)
        got = (mounted.directory / "data/big").read_bytes()
        counted = mounted.counters()

    assert got == BIG
    assert counted.failed == 0


@pytest.mark.parametrize("fault", [body(damaged), body(lambda data: data[:99])], ids=["altered", "short"])
def test_answers_that_stay_wrong_are_an_error_that_the_log_explains(node, registry, fault):
    with open_mount(node.image, node.source, replace(node.settings, wait_limit_s=1.0)) as mounted:
        with open(mounted.directory / "data/big", "rb") as file:
            file.read(10)  # the index of this layer is here
        registry.fault("GET", BLOBS, fault, only=is_part)
        with open(mounted.directory / "data/big", "rb", buffering=0) as file:
            file.seek(4 << 20)
            with pytest.raises(OSError, match="Input/output error"):
                file.read(100)
            registry.mend()
            again = file.read(100)
        log = mounted.folder.log.read_text()
    mounted.folder.log.unlink()
    layer = node.image.manifest.layers[0].digest

    assert again == BIG[4 << 20 :][:100]
    assert any(
        "ERROR" in line
        and str(node.image.root.digest) in line
        and registry.host in line
        and f"{layer}, chunk 16" in line
        for line in log.splitlines()
    )


def test_an_answer_that_trickles_fails_at_the_limit_and_is_not_waited_for_again(node, registry):
    with open_mount(node.image, node.source, replace(node.settings, wait_limit_s=1.0)) as mounted:
        (mounted.directory / "data/small").read_bytes()
        with open(mounted.directory / "data/big", "rb") as file:
            file.read(10)
        registry.fault("GET", BLOBS, drip(0.001), only=is_part)
        begun = time.monotonic()
        with open(mounted.directory / "data/big", "rb", buffering=0) as file:
            file.seek(4 << 20)
            with pytest.raises(OSError, match="Input/output error"):
                file.read(100)
            waited_s = time.monotonic() - begun
            registry.mend()
            again = file.read(100)

    assert 0.9 < waited_s < 6
    assert again == BIG[4 << 20 :][:100]


def test_a_connection_that_gives_next_to_nothing_is_left_for_another(node, registry):
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/small").read_bytes()
        registry.fault("GET", BLOBS, drip(0.02), only=is_part, times=1)
        got = (mounted.directory / "data/big").read_bytes()
        counted = mounted.counters()

    assert got == BIG
    assert counted.outages >= 1


@pytest.mark.parametrize("status", [401, 403])
def test_tokens_that_expire_all_the_time_are_renewed_and_no_more_often(node, registry, status):
    def expired(_request, reply: Reply) -> Reply:
        return replace(reply, status=status) if reply.status == 401 else reply

    registry.token = True
    over = threading.Event()
    expiries = 0

    def expire() -> None:
        nonlocal expiries
        while not over.wait(0.15):
            registry.expire_tokens()
            expiries += 1

    thread = threading.Thread(target=expire)
    with open_mount(node.image, node.source, node.settings) as mounted:
        (mounted.directory / "data/small").read_bytes()
        registry.fault("GET", BLOBS, expired)
        thread.start()
        got = read_slowly(mounted.directory / "data/big", 1.0), read_slowly(mounted.directory / "data/second", 0.6)
        over.set()
        thread.join()
        counted = mounted.counters()
    tokens = len(registry.seen("GET", "/token"))

    assert got == (BIG, BIG[::-1])
    assert counted.failed == 0
    assert expiries > 5
    assert 2 <= tokens <= expiries + 3


def test_a_signed_address_that_expires_in_the_middle_is_asked_for_again(node, registry):
    signature = 0

    def stored(request) -> Reply:
        _, given, digest = request.path.split("/")
        if int(given) != signature:
            return Reply(status=403, body=b"<Code>AccessDenied</Code><Message>Request has expired</Message>")
        return registry._blob(request, digest)

    storage = HttpServer(stored)
    storage.begin()

    def elsewhere(request, _reply) -> Reply:
        digest = request.path.rpartition("/")[2]
        return Reply(status=307, headers={"Location": f"http://{storage.host}/{signature}/{digest}"})

    registry.fault("GET", BLOBS, elsewhere)
    try:
        with open_mount(node.image, node.source, node.settings) as mounted:
            parts = []
            with open(mounted.directory / "data/big", "rb", buffering=0) as file:
                while part := file.read(512 << 10):
                    parts.append(part)
                    signature += 1
            counted = mounted.counters()
    finally:
        storage.end()

    assert b"".join(parts) == BIG
    assert counted.failed == 0


def test_a_registry_that_is_gone_for_good_harms_no_other_image(layout, node, registry, tmp_path):
    """Its reads fail after the limit; another image's are served, and one that is whole starts."""
    (tmp_path / "other").mkdir()
    other = make_node(layout, tmp_path / "other")
    with open_mount(node.image, node.source, node.settings, full=True):
        pass
    cold = replace(node.settings, cache_dir=tmp_path / "cold", wait_limit_s=0.5)
    with (
        open_mount(node.image, node.source, cold) as mounted,
        open_mount(other.image, other.source, other.settings) as on,
    ):
        registry.fault("GET", "", lambda _request, reply: replace(reply, cut_at=0))
        with pytest.raises(OSError, match="Input/output error"):
            (mounted.directory / "data/big").read_bytes()
        elsewhere = (on.directory / "data/big").read_bytes()
        with open_mount(node.image, node.source, node.settings) as whole:
            complete = (whole.directory / "data/big").read_bytes()

    assert elsewhere == complete == BIG


def test_a_mount_has_no_more_requests_in_flight_than_it_may(node, registry):
    lock, running, most = threading.Lock(), 0, 0

    def counted(_request, reply: Reply) -> Reply:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return reply

    registry._server.answer = lambda request: counted(request, registry.answer(request))
    settings = replace(node.settings, connections=3, background=True)
    with open_mount(node.image, node.source, settings) as mounted:
        readers = [
            threading.Thread(target=(mounted.directory / "data" / name).read_bytes) for name in ("big", "second") * 4
        ]
        for each in readers:
            each.start()
        for each in readers:
            each.join()

    assert most == 3


def test_a_program_that_maps_a_library_waits_for_a_registry_that_stops_for_a_while(node, registry):
    """As ``import`` does; an error of such a read would be SIGBUS. 1 s stands for a minute, as 20 s do for the limit."""
    code = (
        "import hashlib, mmap, sys\n"
        "with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:\n"
        "    got = hashlib.sha256()\n"
        "    for at in range(0, len(mapped), 4096):\n"
        "        got.update(mapped[at:at + 4096])\n"
        "        if at == 1 << 20: print('middle', flush=True); sys.stdin.readline()\n"
        "print(got.hexdigest())\n"
    )
    with open_mount(node.image, node.source, node.settings) as mounted:
        file = mounted.directory / "data/big"
        program = subprocess.Popen(
            [sys.executable, "-c", code, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        program.stdout.readline()
        registry.fault("GET", "", lambda _request, reply: replace(reply, cut_at=0))
        program.stdin.write("\n")
        program.stdin.flush()
        time.sleep(1.0)
        still_waits = program.poll() is None
        registry.mend()
        out, _ = program.communicate(timeout=30)
        counted = mounted.counters()

    assert still_waits
    assert program.returncode == 0
    assert out.strip() == hashlib.sha256(BIG).hexdigest()
    assert counted.outages > 0
    assert counted.failed == 0


def test_a_clock_that_is_set_renews_no_token(registry, monkeypatch):
    registry.token = True
    what = registry.add_blob(bytes(1000))
    now = itertools.count(2e9, 1e8)
    monkeypatch.setattr(time, "time", lambda: next(now))
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(registry.host, "a/b"), client)
        for offset in range(10):
            target.fetch_range(what, offset, 5)

    assert len(registry.seen("GET", "/token")) == 1
