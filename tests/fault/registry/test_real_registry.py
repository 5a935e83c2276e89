"""Debian's docker-registry dies, comes back, and forgets tokens: what a push and a lazy reader make of it."""

import io
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.errors import RegistryDown
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.servers import docker_registry

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]
BLOB = random.Random(1).randbytes(4 << 20)


def test_a_reader_outlives_a_restart_of_the_registry(tmp_path):
    what = describe(BLOB)
    with RegistryClient(retry=RetryPolicy(attempts=20, first_s=0.05, longest_s=0.2)) as client:
        with docker_registry(tmp_path) as registry:
            target = RegistryTarget(RegistryReference(registry.host, "a/b"), client)
            target.push(what, partial(io.BytesIO, BLOB))
            assert target.fetch_range(what, 0, 4096) == BLOB[:4096]

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(target.fetch_range, what, 8192, 4096)
            time.sleep(0.1)
            with docker_registry(tmp_path, address=registry.host):
                assert reading.result(30) == BLOB[8192:12288]


def test_a_push_to_a_registry_that_is_killed_says_so_and_leaves_nothing(tmp_path):
    what = describe(BLOB)
    with RegistryClient(retry=RetryPolicy(attempts=2, first_s=0.01)) as client:
        with docker_registry(tmp_path) as registry:
            target = RegistryTarget(RegistryReference(registry.host, "a/b"), client)

            class Killing(io.BytesIO):
                def read(self, size=-1):
                    if self.tell() > 1 << 20:
                        os.kill(registry.process_id, signal.SIGKILL)
                    return super().read(size)

            with pytest.raises(RegistryDown):
                target.push(what, partial(Killing, BLOB))

        with docker_registry(tmp_path, address=registry.host):
            assert not target.has(what)
            target.push(what, partial(io.BytesIO, BLOB))
            with target.fetch(what) as stream:
                assert stream.read() == BLOB
