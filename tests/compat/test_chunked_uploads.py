"""Chunked uploads and copies against real registries: distribution 2.8 (Debian) and 3."""

import io
import random
import time
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import RegistryDown
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.testing.servers import PASSWORD, USER, docker_registry

CHUNK = 1 << 20
BLOB = random.Random(5).randbytes(3 * CHUNK + 12345)


@pytest.fixture(params=["docker-registry", "registry"])
def host(request, tmp_path, require_tool):
    with docker_registry(tmp_path / "registry", program=require_tool(request.param)) as running:
        yield running.host


class Line:
    """A client's transport that loses the answers to some of its PATCHes; ``sent``: bytes that went out."""

    def __init__(self, client, lost):
        self.sent, self._count = 0, 0
        self._send, self._lost = client.transport.send, lost
        client.transport.send = self.send

    def send(self, method, url, **options):
        answer = self._send(method, url, **options)
        self.sent += options.get("size", 0)
        if method == "PATCH":
            self._count += 1
            if self._count in self._lost:
                answer.close()
                raise RegistryDown("the answer was lost")
        return answer


@pytest.mark.parametrize("lost", [(), (1,), (2, 3), (4,)])
def test_a_blob_in_chunks_arrives_once_whatever_answers_are_lost(host, lost):
    what = describe(BLOB)
    with RegistryClient(retry=RetryPolicy(first_s=0.01)) as client:
        line = Line(client, lost)
        upload = UploadSettings(way="chunks", chunk_size=CHUNK)
        target = RegistryTarget(RegistryReference(host, "a/b"), client, upload=upload)

        target.push(what, partial(io.BytesIO, BLOB))

        with target.fetch(what) as stream:
            assert stream.read() == BLOB
        # distribution can't go on when the state of an answer was lost: then the blob begins anew.
        assert line.sent <= len(BLOB) * (1 + len(lost))


def test_the_product_is_known_by_its_answers(host, tmp_path):
    facts = Capabilities()
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(host, "a/b"), client, capabilities=facts)
        target.push(describe(BLOB), partial(io.BytesIO, BLOB))
        product = facts.get(str(client.registry(host).origin), "product")

    assert product in ("distribution", "distribution 3")


def test_one_patch_without_a_range_is_taken(host):
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(host, "a/b"), client, upload=UploadSettings(way="stream"))
        target.push(describe(BLOB), partial(io.BytesIO, BLOB))

        assert target.has(describe(BLOB))


class Alice:
    def find(self, host, repository, actions=()):
        return Credential(username=USER, password=PASSWORD)

    def refused(self, host):
        pass


def test_chunks_from_a_slow_source_arrive_though_each_token_ends_within_two_seconds(tmp_path, require_tool, caplog):
    """Also when reading on to a chunk that was refused takes longer than a token lives."""
    caplog.set_level("DEBUG", logger="envbuilder")
    content = BLOB[: 5 << 16]

    class Slow(io.BytesIO):
        def read(self, size=-1):
            time.sleep(0.6)
            return super().read(min(size, 1 << 16))

    program = require_tool("registry")
    with (
        docker_registry(tmp_path, auth="token", token_ends_s=2, program=program) as registry,
        RegistryClient(credentials=Alice()) as client,
    ):
        upload = UploadSettings(way="chunks", chunk_size=1 << 16)
        target = RegistryTarget(RegistryReference(registry.host, "a/b"), client, writable=True, upload=upload)
        target.push(describe(content), partial(Slow, content))

        assert target.fetch(describe(content)).read() == content
    assert any("PATCH" in line and "again after 401" in line for line in caplog.messages)
