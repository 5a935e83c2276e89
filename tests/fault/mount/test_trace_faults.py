"""Starts with a trace: quick when it is right, and never wrong or broken whatever it is."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard

from envbuilder.digest import Digest, canonical_json, describe
from envbuilder.mount.ahead import Ahead
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.fetch.stream import open_pages, touched
from envbuilder.mount.mount import open_mount
from envbuilder.mount.prepare import device_sizes
from envbuilder.mount.request import Device
from envbuilder.mount.startup.hot import close_frame, frame_data, plan_frames
from envbuilder.mount.startup.hotbuild import build_bundle, page_root
from envbuilder.mount.startup.newest import copy_trace
from envbuilder.mount.startup.trace import Frame, Pages, Trace
from envbuilder.mount.startup.traces import TraceSearch, attach_trace, find_trace
from envbuilder.mount.state import reap
from envbuilder.oci import media_types
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.known import KnownBlobs
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import attach, read_referrer, referrers, unlist
from envbuilder.store.target import RangeTarget
from envbuilder.testing.nodes import BIG, Node, make_node, push_test_image
from envbuilder.testing.servers import docker_registry
from envbuilder.testing.traces import trace_of_reads
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow

#: Chunks that the kernel may ask for without being asked: it reads ahead, past the last page of the trace in the one file.
READ_AHEAD_CHUNKS = 1
#: Bytes of a chunk index of the test image at most; a chunk of it has more.
INDEX_SIZE = 4096


@pytest.fixture(scope="module")
def traced_layout(tmp_path_factory) -> Path:
    """A layout whose image has a trace, with a bundle, of reading ``data/big`` and ``data/small``."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and /dev/fuse")
    folder = tmp_path_factory.mktemp("traced")
    push_test_image(folder / "layout")
    made = make_node(folder / "layout", folder)
    trace = traced(made)
    trace = build_bundle(trace, made.image.manifest.layers, made.source, folder / "bundle", jobs=1)
    attach_trace(LayoutTarget(folder / "layout"), made.image, trace, folder / "bundle")
    return folder / "layout"


@pytest.fixture
def layout(traced_layout, tmp_path) -> Path:
    """In place of the session's: a copy that a test may spoil."""
    shutil.copytree(traced_layout, tmp_path / "layout")
    return tmp_path / "layout"


def traced(node: Node) -> Trace:
    with open_mount(node.image, node.source, node.settings, record=True) as mounted:
        read(mounted.directory)
        return trace_of_reads(node.image, mounted.folder.reads)


def read(directory: Path) -> tuple[bytes, bytes]:
    big = subprocess.run(["cat", directory / "data/big"], capture_output=True, check=True).stdout
    return big, (directory / "data/small").read_bytes()


def kept(node: Node, trace: Trace, metadata: Path) -> bool:
    """Whether the store has all pages of ``trace``, as it should behind a start."""
    store, lazy = ChunkStore(node.settings.cache_dir / "chunks"), node.image.lazy
    sizes = device_sizes(metadata, lazy)
    blobs = {each: open_pages(store, Device(lazy.devices[each], sizes[each])) for each in touched(trace)}
    try:
        return all(blobs[each.device].has_pages(each.first, each.first + each.count - 1) for each in trace.ranges)
    finally:
        for blob in blobs.values():
            blob.close()


def bundle_of(node: Node) -> Path:
    found = find_trace(node.source, node.image)
    assert found is not None
    assert found.hot is not None
    return node.folder / "layout/blobs/sha256" / found.hot.digest.hex


def test_a_start_with_a_trace_asks_only_for_its_bundle(node):
    found = find_trace(node.source, node.image)
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)
        until(lambda: mounted.counters().hot_bytes == found.hot.size)
        counted = mounted.counters()

    assert got == (BIG, b"small\n")
    assert mounted.traced
    assert counted.fetched_chunks <= READ_AHEAD_CHUNKS
    assert counted.hot_bytes == found.hot.size


def test_the_kernel_has_what_a_trace_foresees_before_anybody_reads_it(node):
    pages = find_trace(node.source, node.image).trace.pages
    for _ in range(2):  # a first start, and one that finds the pages on the node
        with open_mount(node.image, node.source, node.settings) as mounted:
            until(lambda: mounted.counters().pushed_pages == pages)
            got = read(mounted.directory)
            counted = mounted.counters()

        assert got == (BIG, b"small\n")
        assert counted.hits <= READ_AHEAD_CHUNKS
        assert counted.waits <= READ_AHEAD_CHUNKS


def test_the_next_start_finds_the_pages_on_the_node(node):
    found = find_trace(node.source, node.image)
    with open_mount(node.image, node.source, node.settings) as mounted:
        until(lambda: mounted.counters().hot_bytes == found.hot.size)
        until(lambda: kept(node, found.trace, mounted.metadata))
    before = len(node.source.ranges())
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)
    asked = node.source.ranges()[before:]

    assert got == (BIG, b"small\n")
    assert str(found.hot.digest) not in {digest for digest, _, _ in asked}
    assert len([size for _, _, size in asked if size > INDEX_SIZE]) <= READ_AHEAD_CHUNKS


def test_what_the_trace_does_not_foresee_is_fetched(node):
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = (mounted.directory / "data/second").read_bytes()

    assert got == BIG[::-1]


def test_a_bundle_that_was_altered_gives_no_wrong_byte(node):
    file = bundle_of(node)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)

    assert got == (BIG, b"small\n")


def test_a_bundle_made_by_an_attacker_gives_no_wrong_byte(node):
    # A consistent artifact: trace, digests and proofs fit each other, only the pages are not the image's.
    number = len(node.image.manifest.layers) - 1
    layer = node.image.manifest.layers[number]
    found = find_trace(node.source, node.image)
    ranges = tuple(pages for pages in found.trace.ranges if pages.device == number) or (Pages(number, 0, 4),)
    plans = plan_frames(ranges)
    evil = b"\xee" * 4096
    leaves = hashlib.sha256(evil).digest() * 64
    data = [
        frame_data(plan, dict.fromkeys(plan.fresh, leaves), [evil * part.count for part in plan.parts])
        for plan in plans
    ]
    stored = [close_frame(*both, level=3) for both in pairwise([b"", *data])]
    frames = tuple(
        Frame(len(each), plan.pages, hashlib.sha256(each).hexdigest()) for each, plan in zip(stored, plans, strict=True)
    )
    chunks = 1 + layer.size // 1000
    nodes = hashlib.sha256(leaves).digest() * chunks
    bundle = node.folder / "evil"
    bundle.write_bytes(nodes + b"".join(stored))
    attach_trace(
        LayoutTarget(node.folder / "layout"),
        node.image,
        replace(found.trace, ranges=ranges, frames=frames, proofs=len(nodes)),
        bundle,
    )
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)
        second = (mounted.directory / "data/second").read_bytes()

    assert got == (BIG, b"small\n")
    assert second == BIG[::-1]
    assert page_root(layer) is not None


class EarlySearch(TraceSearch):
    """A search whose bundle comes through a pipe that gives ``data`` and then, if ``ends``, ends."""

    def __init__(self, source: RangeTarget, data: bytes, *, ends: bool = True) -> None:
        super().__init__(source)
        self.reader, self.writer = os.pipe()
        self.thread = threading.Thread(target=self._write, args=(data,), kwargs={"ends": ends})
        self.thread.start()

    def _write(self, data: bytes, *, ends: bool) -> None:
        view = memoryview(data)
        with suppress(BrokenPipeError):  # who reads has seen enough
            while view:
                view = view[os.write(self.writer, view) :]
        if ends:
            os.close(self.writer)

    def early(self) -> int:
        return self.reader


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        pytest.param(lambda data: data, False, id="all of it"),
        pytest.param(lambda data: data[: len(data) // 2], True, id="the first half"),
        pytest.param(lambda _: b"", True, id="nothing"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), True, id="one other byte"),
        pytest.param(lambda data: bytes(len(data)), True, id="other bytes"),
    ],
)
def test_what_a_pipe_does_not_bring_of_a_bundle_is_asked_for(node, given, asked):
    bundle = bundle_of(node)
    search = EarlySearch(node.source, given(bundle.read_bytes()))
    with open_mount(node.image, node.source, node.settings, ahead=Ahead(search=search)) as mounted:
        got = read(mounted.directory)
        until(lambda: mounted.counters().hot_bytes == bundle.stat().st_size)
    search.thread.join()

    assert got == (BIG, b"small\n")
    assert (bundle.name in {digest.removeprefix("sha256:") for digest, _, _ in node.source.ranges()}) == asked


def test_a_pipe_that_falls_silent_is_not_waited_for(node):
    bundle = bundle_of(node)
    search = EarlySearch(node.source, bundle.read_bytes()[:1000], ends=False)
    with open_mount(node.image, node.source, node.settings, ahead=Ahead(search=search)) as mounted:
        got = read(mounted.directory)
        until(lambda: mounted.counters().hot_bytes == bundle.stat().st_size)
    os.close(search.writer)

    assert got == (BIG, b"small\n")


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
def test_reads_that_race_with_the_stream_get_the_right_bytes_and_none_hangs(node, pause_s):
    # Pages are pushed while reads hold them, stored because reads wait for them, and copied behind all that.
    bundle = bundle_of(node).read_bytes()
    search = EarlySearch(node.source, b"")
    search.thread.join()
    search.reader, writer = os.pipe()
    step = max(1, len(bundle) // 50)

    def trickle() -> None:
        for at in range(0, len(bundle), step):
            os.write(writer, bundle[at : at + step])
            time.sleep(pause_s)
        os.close(writer)

    threading.Thread(target=trickle, daemon=True).start()
    found = find_trace(node.source, node.image)
    with open_mount(node.image, node.source, node.settings, ahead=Ahead(search=search)) as mounted:

        def some(seed: int) -> list[int]:
            """Where of 100 short reads other bytes came."""
            place = random.Random(seed)
            with (mounted.directory / "data/big").open("rb", 0) as file:
                starts = [place.randrange(len(BIG)) for _ in range(100)]
                return [at for at in starts if os.pread(file.fileno(), 5000, at) != BIG[at : at + 5000]]

        with ThreadPoolExecutor(16) as readers:
            wrong = [each for each in readers.map(some, range(16), timeout=30) if each]
        until(lambda: kept(node, found.trace, mounted.metadata))
        counted = mounted.counters()

    assert wrong == []
    assert counted.failed == 0
    assert counted.pushed_pages == found.trace.pages


def test_a_trace_of_other_layers_is_not_used(node):
    found = find_trace(node.source, node.image)
    other = replace(found.trace, devices=tuple(Digest.of(bytes(each)) for each in range(2)))
    attach_trace(LayoutTarget(node.folder / "layout"), node.image, other, None)
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)

    assert got == (BIG, b"small\n")
    assert not mounted.traced


def test_a_trace_without_a_bundle_fetches_its_chunks_before_they_are_read(node):
    found = find_trace(node.source, node.image)
    attach_trace(LayoutTarget(node.folder / "layout"), node.image, replace(found.trace, frames=(), proofs=0), None)
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)
        counted = mounted.counters()

    assert got == (BIG, b"small\n")
    assert counted.ahead_chunks > 0


def test_a_trace_of_the_first_format_fetches_its_chunks_and_not_its_bundle(node):
    found = find_trace(node.source, node.image)
    value = json.loads(zstandard.ZstdDecompressor().decompress(found.trace.dump()))
    old = zstandard.ZstdCompressor().compress(canonical_json({**value, "format": 1}))
    subject = node.image.descriptor
    layout = LayoutTarget(node.folder / "layout")
    bundle = bundle_of(node)
    for each in referrers(layout, subject, media_types.TRACE_ARTIFACT):
        unlist(layout, subject, each.digest)
    blobs = [(describe(old, media_types.TRACE), lambda: io.BytesIO(old)), (found.hot, lambda: bundle.open("rb"))]
    attach(layout, subject, media_types.TRACE_ARTIFACT, blobs, {})
    with open_mount(node.image, node.source, node.settings) as mounted:
        got = read(mounted.directory)
        counted = mounted.counters()

    assert got == (BIG, b"small\n")
    assert mounted.traced
    assert counted.hot_bytes == 0
    assert counted.ahead_chunks > 0


def test_a_streamer_that_is_killed_is_not_missed(node):
    node.source.switch("slow", "0.3")
    with open_mount(node.image, node.source, node.settings) as mounted:
        children = Path(f"/proc/{mounted.supervisor}/task/{mounted.supervisor}/children").read_text().split()
        worker = mounted.folder.worker.read_text().split()[0]
        (streamer,) = set(children) - {worker}
        os.kill(int(streamer), signal.SIGKILL)
        node.source.switch("slow", "")
        got = read(mounted.directory)

    assert got == (BIG, b"small\n")


def test_a_supervisor_that_is_killed_while_pages_come_leaves_no_streamer(node):
    node.source.switch("slow", "0.5")
    with open_mount(node.image, node.source, node.settings, private=True) as mounted:
        children = Path(f"/proc/{mounted.supervisor}/task/{mounted.supervisor}/children").read_text().split()
        (streamer,) = set(children) - {mounted.folder.worker.read_text().split()[0]}
        os.kill(mounted.supervisor, signal.SIGKILL)
        until(lambda: not _runs(streamer))
    node.source.switch("slow", "")
    reap(node.settings.state_dir)

    assert children


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_that_is_killed_while_pages_come_is_replaced(node):
    node.source.switch("slow", "0.2")
    with open_mount(node.image, node.source, node.settings) as mounted:
        reader = subprocess.Popen(["cat", mounted.directory / "data/big"], stdout=subprocess.PIPE)
        os.kill(int(mounted.folder.worker.read_text().split()[0]), signal.SIGKILL)
        node.source.switch("slow", "")
        out, _ = reader.communicate(timeout=60)

    assert out == BIG


def test_a_source_that_goes_away_in_the_middle_of_a_bundle_is_waited_for(node):
    node.source.switch("slow", "0.1")
    with open_mount(node.image, node.source, node.settings) as mounted:
        node.source.switch("away")
        reader = subprocess.Popen(["cat", mounted.directory / "data/big"], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(1.0)
        node.source.switch("away", "")
        out, _ = reader.communicate(timeout=60)

    assert out == BIG


def test_a_trace_follows_its_image_to_another_place(node, tmp_path):
    target = LayoutTarget(tmp_path / "copy", create=True)
    copied = copy_trace(node.source, node.image.descriptor, target)

    assert copied
    assert find_trace(target, node.image) == find_trace(node.source, node.image)


def test_a_trace_follows_to_a_registry_that_lost_what_we_remember_of_it(node, tmp_path, require_tool):
    """A push trusts its memory of a day, and somebody else deleted meanwhile."""
    require_tool("docker-registry")
    known = KnownBlobs(tmp_path / "known")
    with docker_registry(tmp_path / "registry") as registry, RegistryClient() as client:
        reference = RegistryReference(registry.host, "a/b")
        target = RegistryTarget(reference, client, writable=True, known=known)
        copy(node.source, node.image.descriptor, target)
        assert copy_trace(node.source, node.image.descriptor, target)
        (what,) = referrers(target, node.image.descriptor)
        manifest = read_referrer(target, what, node.image.descriptor)
        places = [f"manifests/{what.digest}", *(f"blobs/{layer.digest}" for layer in manifest.layers)]
        for place in places:
            request = urllib.request.Request(f"http://{registry.host}/v2/a/b/{place}", method="DELETE")
            urllib.request.urlopen(request).close()

        again = RegistryTarget(reference, client, writable=True, known=known)
        assert again.has(manifest.layers[0])
        assert copy_trace(node.source, node.image.descriptor, again)
        assert find_trace(again, node.image) == find_trace(node.source, node.image)
