"""Debian's docker-registry and our own process die in the middle of a push, disks fill, tokens end."""

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import RegistryDown
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound
from envbuilder.testing import servers
from envbuilder.testing.registry import FakeRegistry, refuse
from envbuilder.testing.wire import Wire

pytestmark = pytest.mark.slow
BLOB = random.Random(3).randbytes(4 << 20)
WAYS = ["put", "chunks"]
PUSH = """
import sys
from pathlib import Path
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
folder, host, way = sys.argv[1:]
layout = LayoutTarget(Path(folder))
target = RegistryTarget(RegistryReference(host, "a/b"), RegistryClient(), writable=True, upload=UploadSettings(way=way, chunk_size=1 << 20))
copy(layout, layout.lookup("v1"), target, tag="v1")
"""


class Alice:
    def find(self, host, repository, actions=()):
        return Credential(username=servers.USER, password=servers.PASSWORD)

    def refused(self, host):
        pass


@pytest.fixture(autouse=True)
def needs_registry(require_tool):
    require_tool("docker-registry")


@pytest.fixture
def image(tmp_path):
    """A layout with an image of one large layer."""
    layout = LayoutTarget(tmp_path / "layout", create=True)
    config, layer = describe(b"{}", media_types.OCI_CONFIG), describe(BLOB, media_types.OCI_LAYER_TAR)
    data = Manifest(config=config, layers=(layer,)).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((config, b"{}"), (layer, BLOB), (root, data)):
        layout.push(what, partial(io.BytesIO, content))
    layout.tag(root, "v1")
    return layout, root


def target_of(host, client, way="put"):
    upload = UploadSettings(way=way, chunk_size=1 << 20)
    return RegistryTarget(RegistryReference(host, "a/b"), client, writable=True, upload=upload)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("at", [1 << 19, 3 << 20])
def test_a_push_that_is_killed_leaves_no_image_and_the_next_one_makes_it(image, tmp_path, way, at):
    layout, root = image
    reached = threading.Event()
    with servers.docker_registry(tmp_path / "registry") as registry, RegistryClient() as client:
        with Wire(registry.host, up_rate=8 << 20, passed=lambda count: count >= at and reached.set()) as wire:
            process = subprocess.Popen([sys.executable, "-c", PUSH, layout.directory, wire.host, way])
            assert reached.wait(20)
            process.kill()
            assert process.wait() == -signal.SIGKILL

        target = target_of(registry.host, client, way)
        with pytest.raises(NotFound):
            target.lookup("v1")
        with pytest.raises(NotFound):
            target.lookup(str(root.digest))
        copy(layout, root, target, tag="v1")
        assert target.lookup("v1") == root


@pytest.mark.parametrize("way", WAYS)
def test_a_registry_that_is_restarted_in_a_push_gets_all_of_it(image, tmp_path, way):
    layout, root = image
    with RegistryClient(retry=RetryPolicy(attempts=20, first_s=0.05, longest_s=0.3)) as client, ExitStack() as stack:
        with servers.docker_registry(tmp_path / "registry") as registry:
            host, process_id = registry.host, registry.process_id
            killed = threading.Event()

            def kill(_blob, size):
                if size > 0 and not killed.is_set():
                    os.kill(process_id, signal.SIGKILL)
                    killed.set()

            pool = stack.enter_context(ThreadPoolExecutor(1))
            pushing = pool.submit(copy, layout, root, target_of(host, client, way), tag="v1", progress=kill)
            assert killed.wait(20)
        time.sleep(0.2)
        with servers.docker_registry(tmp_path / "registry", address=host):
            pushing.result(30)

            assert target_of(host, client).lookup("v1") == root


def test_a_registry_whose_disk_is_full_says_so_and_takes_the_image_when_there_is_room(image, tmp_path):
    layout, root = image
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        with (
            servers.docker_registry(disk) as registry,
            RegistryClient(retry=RetryPolicy(attempts=2, first_s=0.01)) as client,
        ):
            target = target_of(registry.host, client)
            with pytest.raises(RegistryDown, match=r"destination .*500"):
                copy(layout, root, target, tag="v1")
            with pytest.raises(NotFound):
                target.lookup("v1")
            subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
            copy(layout, root, target, tag="v1")
            assert target.lookup("v1") == root
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_blob_whose_link_was_cut_short_by_a_full_disk_is_sent_again(image, tmp_path):
    layout, root = image
    with (
        servers.docker_registry(tmp_path / "registry") as registry,
        RegistryClient(retry=RetryPolicy(attempts=2, first_s=0.01)) as client,
    ):
        copy(layout, root, target_of(registry.host, client), tag="v1")
        link = next(iter((tmp_path / "registry").rglob("_layers/sha256/*/link")))
        text = link.read_bytes()
        link.write_bytes(b"")  # distribution 2.8 answers 500 from now on

        report = copy(layout, root, target_of(registry.host, client), tag="v1")

        assert link.read_bytes() == text
        assert report.copied == 1


@pytest.mark.parametrize("way", WAYS)
def test_tokens_that_end_while_a_slow_upload_runs_are_renewed(image, tmp_path, way):
    """The registry forgives 60 s; a token of -58 s is good for 2 s more, and its answer claims no life at all."""
    layout, root = image
    with (
        servers.docker_registry(tmp_path / "registry", auth="token", token_life_s=-58) as registry,
        Wire(registry.host, up_rate=1 << 20) as wire,
        RegistryClient(credentials=Alice()) as client,
    ):
        copy(layout, root, target_of(wire.host, client, way), tag="v1")

        tokens = {line for line in bytes(wire.sent).split(b"\r\n") if line.startswith(b"Authorization: Bearer")}
        assert len(tokens) > 1
        assert target_of(registry.host, client).lookup("v1") == root


def test_a_storm_of_429_is_sat_out_with_the_patience_asked_for(tmp_path):
    waits = []
    blobs = [random.Random(seed).randbytes(10_000) for seed in range(20)]
    asked = Counter()

    def is_early(request):
        key = request.method, str(request.query.get("digest", request.path))
        asked[key] += 1
        return asked[key] <= 3

    with FakeRegistry() as registry, RegistryClient(sleep=waits.append, jitter=lambda: 0.0) as client:
        storm = refuse(429, "TOOMANYREQUESTS", "slow down", Retry_After="3")
        for method in ("HEAD", "POST", "PUT"):
            registry.fault(method, "/v2/", storm, only=is_early, instead=True)
        layout = LayoutTarget(tmp_path / "layout", create=True)
        layers = []
        for blob in blobs:
            layers.append(describe(blob, media_types.OCI_LAYER_TAR))
            layout.push(layers[-1], partial(io.BytesIO, blob))
        layout.push(describe(b"{}"), partial(io.BytesIO, b"{}"))
        data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=tuple(layers)).dump()
        root = describe(data, media_types.OCI_MANIFEST)
        layout.push(root, partial(io.BytesIO, data))

        copy(layout, root, target_of(registry.host, client), tag="v1", jobs=1)

        assert set(blobs) <= set(registry.blobs.values())
        assert waits
        assert min(waits) >= 3
