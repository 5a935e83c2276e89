"""The calls of the distribution-spec that we make, each shown right against the fake registry and real ones.

The client's half of the OCI conformance list; the ends are numbered as in the specification's table of endpoints.
Servers live for the session; each test has repositories of its own.
"""

import hashlib
import io
import itertools
import random
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import Call, RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import Rejected
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach, referrers
from envbuilder.store.target import NotFound
from envbuilder.testing import servers
from envbuilder.testing.checks import check_range_target
from envbuilder.testing.registry import FakeRegistry
from envbuilder.testing.storage import s3_storage

pytestmark = pytest.mark.slow
BLOB = random.Random(5).randbytes(3 << 20)
NUMBERS = itertools.count()
VARIANTS = ["fake", "fake-referrers", "files", "s3", "token", "htpasswd", "tls", "mtls"]


class Alice:
    def find(self, host, repository, actions=()):
        return Credential(username=servers.USER, password=servers.PASSWORD)

    def refused(self, host):
        pass


class Https(HttpSettings):
    """This machine speaks http by default."""

    def scheme_of(self, host):
        return "https"


@dataclass
class Place:
    """A registry, how to speak to it, and where it sends those who want a blob."""

    host: str
    settings: HttpSettings
    storage: object = None
    fake: object = None

    def client(self):
        return RegistryClient(self.settings, Alice())


@pytest.fixture(scope="session", params=VARIANTS)
def place(request, tmp_path_factory):
    name, folder = request.param, tmp_path_factory.mktemp("place")
    if not name.startswith("fake") and shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    with ExitStack() as stack:
        if name.startswith("fake"):
            fake = stack.enter_context(FakeRegistry(token=True))
            fake.referrers, fake.mount = name == "fake-referrers", "accept"
            yield Place(fake.host, HttpSettings(), fake=fake)
            return
        options, wire, settings = {}, None, HttpSettings()
        if name == "s3":
            options["storage"], wire = stack.enter_context(s3_storage(folder))
        elif name in ("token", "htpasswd"):
            options["auth"] = name
        elif name in ("tls", "mtls"):
            options |= {"tls": True, "mutual": name == "mtls"}
        running = stack.enter_context(servers.docker_registry(folder, **options))
        if "tls" in options:
            certificates = folder / "certs.d" / running.host
            certificates.mkdir(parents=True)
            for file in ("ca.crt", "client.cert", "client.key"):
                shutil.copy(folder / file, certificates)
            settings = Https(certificate_dirs=(folder / "certs.d",))
        yield Place(running.host, settings, storage=wire)


@pytest.fixture
def repository(place):
    """Makes repositories: ``repository(**options)``, each with a name that nobody has."""
    with place.client() as client:
        yield lambda **options: RegistryTarget(
            RegistryReference(place.host, f"plan/r{next(NUMBERS)}"), client, writable=True, **options
        )


def blob_of(seed, size=200_000):
    data = hashlib.shake_256(str(seed).encode()).digest(size)
    return describe(data), data


def push(target, data, media_type="application/octet-stream"):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def image(target, text=b"layer"):
    """A manifest in ``target``, with its parts."""
    config = push(target, b'{"architecture":"amd64","os":"linux"}', media_types.OCI_CONFIG)
    layer = push(target, text, media_types.OCI_LAYER_TAR)
    return push(target, Manifest(config=config, layers=(layer,)).dump(), media_types.OCI_MANIFEST)


def delete(target, path):
    registry = target._registry
    call = Call(method="DELETE", url=registry.url(path), scopes=(f"repository:{target._repository}:pull,push,delete",))
    return registry.request(call, range(200, 300)).status


def test_end_2_a_blob_is_there_or_not_and_comes_whole(repository):
    target, (what, data) = repository(), blob_of(next(NUMBERS))

    assert not target.has(what)
    with pytest.raises(NotFound):
        target.fetch(what)
    push(target, data)
    assert target.has(what)
    with target.fetch(what) as stream:
        assert stream.read() == data


def test_end_2_ranges_are_slices_and_a_download_goes_on_where_it_broke(repository):
    check_range_target(repository)
    target, (what, data) = repository(), blob_of(next(NUMBERS))
    push(target, data)

    answer = target.resume(what, 150_000)

    assert answer.read_exactly(50_000) == data[150_000:]


def test_end_3_and_7_a_manifest_is_found_by_tag_and_digest(repository):
    target = repository()
    root = image(target)
    target.tag(root, "v1")
    again = RegistryTarget(RegistryReference(target.name.partition("/")[0], target._repository), target._client)

    assert again.lookup("v1").digest == again.lookup(str(root.digest)).digest == root.digest
    assert again.has(root)
    with again.fetch(root) as stream:
        assert Digest.of(stream.read()) == root.digest
    for absent in ("none", f"sha256:{'0' * 64}"):
        with pytest.raises(NotFound):
            again.lookup(absent)


@pytest.mark.parametrize("way", ["put", "stream", "chunks"])
def test_end_4_5_and_6_a_blob_goes_up_in_each_way(repository, way):
    data = BLOB + str(next(NUMBERS)).encode()
    target = repository(upload=UploadSettings(way=way, chunk_size=1 << 20))

    what = push(target, data)

    with target.fetch(what) as stream:
        assert stream.read() == data


def test_end_9_a_manifest_is_deleted_by_digest(repository):
    target = repository()
    root = image(target)
    target.tag(root, "v1")

    assert delete(target, f"/v2/{target._repository}/manifests/{root.digest}") == 202
    with pytest.raises(NotFound):
        target.lookup(str(root.digest))


def test_end_10_a_blob_is_deleted(repository):
    target, (what, data) = repository(), blob_of(next(NUMBERS))
    push(target, data)

    assert delete(target, f"/v2/{target._repository}/blobs/{what.digest}") == 202
    assert not target.has(what)


def test_end_11_a_blob_is_mounted_from_a_neighbour(repository):
    first, (what, data) = repository(), blob_of(next(NUMBERS))
    push(first, data)
    second = repository(mount_from=[first._repository])

    second.push(what, lambda: pytest.fail("a mount moves no bytes"))

    assert second.has(what)


def test_end_12_referrers_are_listed_by_the_api_or_by_the_tag(repository):
    target = repository()
    root = image(target)
    target.tag(root, "v1")

    made = attach(
        target, root, "application/vnd.test.note", [(describe(b"note", "text/plain"), partial(io.BytesIO, b"note"))]
    )

    assert [item.digest for item in referrers(target, root)] == [made.digest]
    assert referrers(target, root, "application/vnd.test.other") == ()


def test_end_14_a_push_that_fails_is_cancelled(place, repository):
    target, (what, _) = repository(), blob_of(next(NUMBERS))

    with pytest.raises(Exception, match="want"):
        target.push(what, partial(io.BytesIO, b"something else"))

    assert not target.has(what)
    if place.fake:
        assert place.fake.uploads.open == 0


def test_an_image_goes_there_and_comes_back(repository):
    source, back, target = MemoryTarget(), MemoryTarget(), repository()
    root = image(source, str(next(NUMBERS)).encode())

    copy(source, root, target, tag="v1")
    copy(target, target.lookup("v1"), back, tag="v1")

    assert back.lookup("v1") == root


def test_no_credential_reaches_where_blobs_are_kept(place, repository):
    """The registry itself signs with AWS4 there; our logins and tokens are Basic and Bearer."""
    target, (what, data) = repository(), blob_of(next(NUMBERS))
    push(target, data)
    with target.fetch(what) as stream:
        assert stream.read() == data
    if place.storage is None:
        return

    sent = bytes(place.storage.sent)
    assert b"User-Agent: envbuilder" in sent
    assert b"Authorization: B" not in sent


def test_a_pull_through_cache_serves_what_it_has_not_and_takes_nothing(tmp_path, require_tool):
    require_tool("docker-registry")
    (tmp_path / "up").mkdir()
    with (
        servers.docker_registry(tmp_path / "up") as upstream,
        servers.docker_registry(tmp_path / "cache", mirror_of=upstream.host) as cache,
        RegistryClient() as client,
    ):
        target = RegistryTarget(RegistryReference(upstream.host, "a/b"), client)
        root = image(target)
        target.tag(root, "v1")
        mirror, back = RegistryTarget(RegistryReference(cache.host, "a/b"), client), MemoryTarget()

        copy(mirror, mirror.lookup("v1"), back, tag="v1")

        assert back.lookup("v1") == root
        with pytest.raises(Rejected, match="UNSUPPORTED") as caught:
            push(mirror, b"new")
        assert "pull-through" in caught.value.hint
