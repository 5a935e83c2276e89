"""The calls of the distribution-spec that we make, each shown right against the fake registry and real ones.

The client's half of the OCI conformance list; the ends are numbered as in the specification's table of endpoints.
Of these we never make end-4b, a blob in a single POST. Servers live for the session; each test has repositories of its
own. tests/compat/test_registry_plan.py runs all of it over distribution 3.
"""

import hashlib
import io
import itertools
import logging
import random
import re
import shutil
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest

from envbuilder.digest import Digest, DigestMismatch, describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.body import Body
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import Denied, Rejected
from envbuilder.registry.logins import verify
from envbuilder.registry.purposes import PURPOSES, purpose_of
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.tags import CannotDelete
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.movement import Movement
from envbuilder.store.referrers import attach, referrers
from envbuilder.store.target import NotFound
from envbuilder.testing import servers
from envbuilder.testing.checks import check_range_target, check_target
from envbuilder.testing.registry import FakeRegistry, refuse
from envbuilder.testing.storage import s3_storage

pytestmark = pytest.mark.slow
BLOB = random.Random(5).randbytes(3 << 20)
NUMBERS = itertools.count()
_ANSWERED = re.compile(r"([A-Z]+) (http\S+) \(.*\) -> \d+ in ")
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
    """A registry, how to speak to it, and where it sends those who want a blob.

    takes_nothing: it keeps blobs of no bytes. deletes_tags, pages: it does. asks: it wants to know who we are.
    calls: what was asked of it, in the words of our log.
    """

    host: str
    settings: HttpSettings = field(default_factory=HttpSettings)
    storage: object = None
    fake: object = None
    takes_nothing: bool = True
    deletes_tags: bool = True
    pages: bool = True
    asks: bool = False
    calls: set = field(default_factory=set)

    def client(self, **options):
        return RegistryClient(self.settings, Alice(), **options)


@contextmanager
def fake_place(name):
    """A fake registry of this ``name``."""
    with FakeRegistry(token=True) as fake:
        fake.referrers, fake.mount = name == "fake-referrers", "accept"
        yield Place(fake.host, fake=fake, asks=True)


@contextmanager
def real_place(name, folder, program="docker-registry", **facts):
    """A build of distribution, set up as ``name`` says."""
    with ExitStack() as stack:
        options, wire, settings = {}, None, HttpSettings()
        if name == "s3":
            options["storage"], wire = stack.enter_context(s3_storage(folder))
        elif name in ("token", "htpasswd"):
            options["auth"] = name
        elif name in ("tls", "mtls"):
            options |= {"tls": True, "mutual": name == "mtls"}
        running = stack.enter_context(servers.docker_registry(folder, program=program, **options))
        if "tls" in options:
            certificates = folder / "certs.d" / running.host
            certificates.mkdir(parents=True)
            for file in ("ca.crt", "client.cert", "client.key"):
                shutil.copy(folder / file, certificates)
            settings = Https(certificate_dirs=(folder / "certs.d",))
        yield Place(running.host, settings, storage=wire, asks="auth" in options, **facts)


@pytest.fixture(scope="session", params=VARIANTS)
def place(request, tmp_path_factory):
    name = request.param
    if name.startswith("fake"):
        with fake_place(name) as made:
            yield made
        return
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    # distribution 2.8 (registry.md 9): no pages, no deletion of tags, and S3 keeps no blob of no bytes.
    facts = {"pages": False, "deletes_tags": False, "takes_nothing": name != "s3"}
    with real_place(name, tmp_path_factory.mktemp("place"), **facts) as made:
        yield made


@pytest.fixture(autouse=True)
def calls(request):
    """What this test asks of the registry, in the words of our log."""
    log, level = logging.getLogger("envbuilder.registry"), logging.getLogger("envbuilder.registry").level
    words = request.getfixturevalue("place").calls if "place" in request.fixturenames else set()

    class Listener(logging.Handler):
        def emit(self, record):
            if match := _ANSWERED.match(record.getMessage()):
                words.add(purpose_of(match[1], match[2]))

    listener = Listener()
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    yield words
    log.removeHandler(listener)
    log.setLevel(level)


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


def begun(target):
    """An upload that was begun."""
    return target._upload._start()


def test_end_1_a_registry_says_whether_it_wants_to_know_who_we_are(place):
    with place.client() as client:
        assert verify(client.registry(place.host)) is place.asks


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


def test_end_6_a_file_that_is_sent_unread_is_compared_by_the_registry(place, tmp_path):
    layout = LayoutTarget(tmp_path / "layout", create=True)
    what = push(layout, BLOB + str(next(NUMBERS)).encode())
    file = layout.file_of(what)
    data = file.read_bytes()
    file.write_bytes(b"?" + data[1:])

    with place.client(sleep=lambda _seconds: None) as client:
        target = RegistryTarget(RegistryReference(place.host, f"plan/r{next(NUMBERS)}"), client, writable=True)
        session = begun(target)
        assert session.compares
        session.cancel()
        with pytest.raises(DigestMismatch, match="source oci:"):
            Movement(layout, target, None).blob(what)
        assert not target.has(what)

        file.write_bytes(data)
        Movement(layout, target, None).blob(what)
        with target.fetch(what) as stream:
            assert stream.read() == data


def test_end_6_a_blob_of_no_bytes_is_kept_or_refused(place, repository):
    target, nothing = repository(), describe(b"")
    if not place.takes_nothing:
        # 2.8 on S3: 500, which may be anything, so it is tried again before it is an error.
        quick = RetryPolicy(attempts=2, first_s=0.01)
        with place.client(retry=quick) as client, pytest.raises(UnavailableError, match="500"):
            push(RegistryTarget(RegistryReference(place.host, "plan/nothing"), client, writable=True), b"")
        return

    push(target, b"")

    with target.fetch(nothing) as stream:
        assert stream.read() == b""


def test_end_8_tags_are_listed_page_by_page(place, repository, monkeypatch, caplog):
    monkeypatch.setattr("envbuilder.registry.tags._PAGE", 2)
    target = repository()
    with suppress(NotFound):  # distribution 3 over S3 lists no tags of a repository that is not there
        assert target.tag_names() == ()
    root = image(target)
    for tag in ("e", "b", "d", "c", "a"):
        target.tag(root, tag)
    caplog.clear()

    assert target.tag_names() == ("a", "b", "c", "d", "e")
    asked = [line for line in caplog.messages if line.startswith("GET") and "/tags/list" in line and "-> 200" in line]
    assert len(asked) == (3 if place.pages else 1)


def test_end_9_a_manifest_is_deleted_by_digest(repository):
    target = repository()
    root = image(target)
    target.tag(root, "v1")

    target.delete_manifest(root.digest)

    for name in ("v1", str(root.digest)):
        with pytest.raises(NotFound):
            target.lookup(name)
    with pytest.raises(NotFound):
        target.delete_manifest(root.digest)


def test_end_9_a_tag_is_deleted_or_the_reason_is_given(place, repository):
    target = repository()
    root = image(target)
    for tag in ("v1", "v2"):
        target.tag(root, tag)

    if place.deletes_tags:
        target.delete_tag("v1")
    else:
        with pytest.raises(CannotDelete) as caught:
            target.delete_tag("v1")
        assert "digest" in caught.value.hint

    assert target.tag_names() == (("v2",) if place.deletes_tags else ("v1", "v2"))
    assert target.lookup("v2") == root


def test_end_11_a_blob_is_mounted_from_a_neighbour(place, repository):
    first, (what, data) = repository(), blob_of(next(NUMBERS))
    push(first, data)
    second = repository(mount_from=[first._repository])
    if place.fake:  # its repositories share their blobs
        place.fake.fault("HEAD", f"{second._repository}/blobs/", refuse(404), times=1)

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


def test_end_13_an_upload_says_how_much_of_it_is_there(repository):
    target, (what, data) = repository(), blob_of(next(NUMBERS))
    session, body = begun(target), Body(partial(io.BytesIO, data), what)
    session.patch(body, 0, 150_000)

    assert session.received() == 150_000

    session.patch(body, 150_000, 50_000)
    session.put(what, body, what.size)
    assert target.has(what)


def test_end_14_an_upload_that_is_cancelled_is_gone(repository):
    session = begun(repository())

    session.cancel()

    with pytest.raises(NotFound):
        session.received()


def test_end_14_a_push_that_fails_is_cancelled(place, repository):
    target, (what, _) = repository(), blob_of(next(NUMBERS))

    with pytest.raises(DigestMismatch):
        target.push(what, partial(io.BytesIO, b"something else"))

    assert not target.has(what)
    if place.fake:
        assert place.fake.uploads.open == 0


def test_end_all_a_repository_keeps_the_contract_of_a_target(place, repository):
    check_target(repository, takes_nothing=place.takes_nothing)


def test_end_all_every_call_that_we_make_is_in_this_plan(request, place):
    """Of each kind that our log has words for (purposes.py), if the whole plan ran before this test."""
    plan = {name for name in vars(request.module) if name.startswith("test_end_")}
    if plan - {item.originalname for item in request.session.items}:
        pytest.skip("a part of the plan was run")

    assert {words for _, _, words in PURPOSES} - place.calls == set()


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


@pytest.fixture
def programs(require_tool):
    """The builds that are a cache and what is behind it."""
    return [require_tool("docker-registry")]


def test_a_pull_through_cache_serves_what_it_has_not_and_takes_nothing(tmp_path, programs):
    """Every call that reads, and a refusal of every call that writes."""
    for number, program in enumerate(programs):
        (tmp_path / f"{number}").mkdir()
        up, down = tmp_path / f"{number}/up", tmp_path / f"{number}/cache"
        with (
            servers.docker_registry(up, program=program) as upstream,
            servers.docker_registry(down, mirror_of=upstream.host, program=program) as cache,
            RegistryClient() as client,
        ):
            reads_and_takes_nothing(
                RegistryTarget(RegistryReference(upstream.host, "a/b"), client),
                RegistryTarget(RegistryReference(cache.host, "a/b"), client),
            )


def reads_and_takes_nothing(target, mirror):
    root, (what, data), back = image(target), blob_of("cached"), MemoryTarget()
    target.tag(root, "v1")
    push(target, data)
    note = attach(target, root, "application/vnd.test.note", [(what, partial(io.BytesIO, data))])

    copy(mirror, mirror.lookup("v1"), back, tag="v1")

    assert back.lookup("v1") == root
    assert mirror.lookup(str(root.digest)).digest == root.digest
    assert mirror.has(root)
    assert mirror.has(what)
    assert mirror.fetch_range(what, 100_000, 1000) == data[100_000:101_000]
    assert "v1" in mirror.tag_names()
    assert [each.digest for each in referrers(mirror, root)] == [note.digest]
    assert not mirror.has(describe(b"nowhere"))
    with pytest.raises(NotFound):
        mirror.lookup("absent")
    with pytest.raises(Rejected, match="UNSUPPORTED") as caught:
        push(mirror, b"new")
    assert "pull-through" in caught.value.hint
    for write in (
        partial(image, mirror, b"new"),
        partial(mirror.tag, root, "v2"),
        partial(mirror.delete_manifest, root.digest),
    ):
        with pytest.raises((Rejected, Denied)):
            write()
    assert target.lookup("v1") == root
