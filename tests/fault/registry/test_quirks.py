"""Every quirk of registry.md 9 against the client: an image goes there and comes back, or the user is told why not."""

import io
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import Denied, RegistryDown, Rejected
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound
from envbuilder.testing.quirks import QUIRKS
from envbuilder.testing.registry import FakeRegistry

LAYER = bytes(range(256)) * 400
#: Where even a small image cannot go as it is, and what the user is told.
REFUSED = {
    "ecr-no-repository": (NotFound, "repository does not exist"),
    "ghcr-expired-login": (Denied, "DENIED"),
    "zot-stub": (DigestMismatch, "want sha256:"),
}


class Login:
    def find(self, host, repository, actions=()):
        return Credential(username="alice", password="hunter22")

    def refused(self, host):
        pass


@pytest.fixture
def elsewhere():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def meet(new_world, elsewhere):
    """A client before a registry with a quirk and a token server."""
    registries = []

    def make(name):
        registries.append(FakeRegistry(token=True).__enter__())
        QUIRKS[name].set_up(registries[-1], elsewhere)
        return new_world(registries[-1], Login())

    yield make
    for registry in registries:
        registry.__exit__()


@pytest.fixture
def image():
    """A small image in memory."""
    return image_of(LAYER)


def image_of(layer, **fields):
    target = MemoryTarget()
    config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
    parts = describe(config, media_types.OCI_CONFIG), describe(layer, media_types.OCI_LAYER_TAR)
    data = Manifest(config=parts[0], layers=parts[1:], **fields).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((parts[0], config), (parts[1], layer), (root, data)):
        target.push(what, partial(io.BytesIO, content))
    return target, root


@pytest.mark.parametrize("name", sorted(set(QUIRKS) - set(REFUSED)))
def test_an_image_goes_to_every_product_and_comes_back(meet, image, elsewhere, name):
    world, back = meet(name), MemoryTarget()
    source, root = image

    copy(source, root, world.repository(writable=True), tag="v1")
    reader = world.repository()
    copy(reader, reader.lookup("v1"), back, tag="v1")

    assert back.lookup("v1") == root
    assert reader.fetch_range(describe(LAYER), 1000, 5000) == LAYER[1000:6000]
    assert world.registry.uploads.open == 0
    assert all("authorization" not in request.headers for request in elsewhere.requests)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_product_refuses_is_said(meet, image, name):
    world, (source, root) = meet(name), image
    error, text = REFUSED[name]

    with pytest.raises(error, match=text):
        copy(source, root, world.repository(writable=True), tag="v1")
        copy(world.repository(), root, MemoryTarget())


@pytest.mark.parametrize("name", ["acr-20mb", "cloudflare-cap", "ghcr-4mib", "ghcr-lossy", "gar-no-patch", "ecr-patch"])
def test_a_large_blob_arrives_whole_or_not_at_all(meet, name):
    """ACR and Cloudflare cap bodies: then chunks must do, or the user reads of the limit."""
    world, blob = meet(name), bytes(21 << 20)

    error = None
    try:
        world.repository(writable=True).push(describe(blob), partial(io.BytesIO, blob))
    except Rejected as refused:
        error = refused

    if error:
        assert (name in ("acr-20mb", "cloudflare-cap"), error.status, "limit" in error.hint) == (True, 413, True)
    else:
        assert world.registry.blobs[str(describe(blob).digest)] == blob
    assert world.registry.uploads.open == 0


@pytest.mark.parametrize("name", ["hub-mount", "quay-mount", "gitlab-first-mount"])
def test_a_mount_that_a_product_refuses_becomes_an_upload(meet, image, name):
    world, (source, root) = meet(name), image

    copy(source, root, world.repository("new/image", writable=True, mount_from=["base/image"]), tag="v1")

    assert world.registry.blobs[str(describe(LAYER).digest)] == LAYER


def test_a_metered_registry_is_asked_for_a_manifest_once_a_pull(meet, image):
    world, (source, root) = meet("hub-metered"), image
    copy(source, root, world.repository(writable=True), tag="v1")

    for _ in range(10):
        reader = world.repository()
        copy(reader, reader.lookup("v1"), MemoryTarget())

    assert len([item for item in world.registry.seen("GET", "/manifests/") if "authorization" in item.headers]) == 10


def test_a_manifest_over_the_limit_is_refused_with_the_words_of_the_product(meet):
    source, root = image_of(LAYER, annotations={"long": "x" * (4 << 20)})

    with pytest.raises(EnvbuilderError, match="4194304"):
        copy(source, root, meet("distribution-2.8-manifest").repository(writable=True), tag="v1")


def test_an_immutable_tag_does_not_move_and_the_same_image_is_no_move(meet, image):
    world, (source, root) = meet("ecr-immutable"), image
    target = world.repository(writable=True)
    copy(source, root, target, tag="v1")

    copy(source, root, target, tag="v1")
    other, moved = image_of(LAYER + b"x")
    with pytest.raises(Rejected, match="immutable"):
        copy(other, moved, target, tag="v1")
    assert world.repository().lookup("v1") == root


def test_nothing_as_a_blob_is_an_error_where_the_store_cannot_keep_it(meet):
    with pytest.raises(RegistryDown, match="500"):
        meet("s3-empty-blob").repository(writable=True).push(describe(b""), io.BytesIO)


def test_a_login_that_expired_does_not_block_what_anyone_may_read(meet, caplog):
    world = meet("ghcr-expired-login")
    what = world.registry.add_blob(LAYER)

    assert world.read(what) == LAYER
    assert "refused our credentials" in caplog.text


def test_a_cookie_is_never_sent_back(meet, image):
    world, (source, root) = meet("harbor-cookies"), image

    copy(source, root, world.repository(writable=True), tag="v1")

    assert [item for item in world.registry.requests if "cookie" in item.headers] == []


@pytest.mark.parametrize("name", ["distribution-3-race", "nexus-race"])
def test_who_loses_a_race_for_a_blob_has_it_all_the_same(meet, name):
    world = meet(name)

    world.repository(writable=True).push(describe(LAYER), partial(io.BytesIO, LAYER))

    assert len(world.registry.seen("PUT", "/uploads/")) == 1
    assert world.waits == []


def test_a_stub_is_not_taken_for_a_blob(meet):
    world = meet("zot-stub")
    what = world.registry.add_blob(LAYER)

    assert not world.target.has(what)
    with pytest.raises(DigestMismatch):
        world.read(what)
