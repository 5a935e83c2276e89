"""Every attack of registry.md 8.2 that a registry can make: what the client does, and what it never does."""

import io
import time
from functools import partial

import pytest

from envbuilder.digest import Digest, DigestMismatch, InvalidJson, describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.registry import answer
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import BadAnswer, ForbiddenAddress, RateLimited, RegistryDown, Rejected, Unauthorized
from envbuilder.registry.settings import HttpSettings
from envbuilder.store.copy import GraphTooLarge, copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound
from envbuilder.testing.attacks import ATTACKS, REPOSITORY, TAG
from envbuilder.testing.registry import FakeRegistry

LAYER = bytes(range(256)) * 400
PASSWORD = "hunter22"
#: What pulling or pushing ends with; None: it ends well, because the attack has no effect.
PULL = {
    "tag-moves": None,
    "other-blob": DigestMismatch,
    "short-blob": DigestMismatch,
    "long-blob": DigestMismatch,
    "endless-blob": DigestMismatch,
    "other-manifest": DigestMismatch,
    "lying-digest-header": None,
    "digest-header-as-path": None,
    "digest-as-path": EnvbuilderError,
    "negative-size": EnvbuilderError,
    "two-sizes": DigestMismatch,
    "duplicate-keys": InvalidJson,
    "giant-manifest": BadAnswer,
    "endless-manifest": BadAnswer,
    "nested-json": InvalidJson,
    "cyclic-index": DigestMismatch,
    "deep-index": GraphTooLarge,
    "wide-index": EnvbuilderError,
    "foreign-layer": NotFound,
    "media-type-confusion": BadAnswer,
    "realm-metadata": ForbiddenAddress,
    "realm-elsewhere": Unauthorized,
    "realm-file": ForbiddenAddress,
    "realm-userinfo": ForbiddenAddress,
    "realm-redirect": BadAnswer,
    "realm-endless": BadAnswer,
    "blob-redirect": None,
    "manifest-redirect": None,
    "redirect-metadata": ForbiddenAddress,
    "redirect-loop": BadAnswer,
    "terminal-escape": NotFound,
    "slow-loris": RegistryDown,
    "wrong-length": RegistryDown,
    "endless-retry-after": RateLimited,
}
PUSH = {
    "location-elsewhere": Unauthorized,
    "location-metadata": ForbiddenAddress,
    "location-file": ForbiddenAddress,
    "upload-redirect": Rejected,
    "echoed-secret": EnvbuilderError,
    "realm-metadata": ForbiddenAddress,
    "realm-elsewhere": Unauthorized,
    "realm-redirect": BadAnswer,
}


class Login:
    """The same credentials for every host, so that a leak would show."""

    def find(self, host, repository, actions=()):
        return Credential(username="alice", password=PASSWORD)

    def refused(self, host):
        pass


@pytest.fixture
def elsewhere():
    with FakeRegistry(token=True) as registry:
        registry.uploads.add("7")
        yield registry


@pytest.fixture
def attacked(new_world, elsewhere, monkeypatch):
    """A client before a registry that has an image and attacks."""
    monkeypatch.setattr(answer, "_DOCUMENT_TIMEOUT_S", 0.1)
    registries = []

    def make(name):
        registry = FakeRegistry(token=True).__enter__()
        registries.append(registry)
        config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
        for blob in (config, LAYER):
            registry.add_blob(blob)
        parts = describe(config, media_types.OCI_CONFIG), describe(LAYER, media_types.OCI_LAYER_TAR)
        registry.add_manifest(
            REPOSITORY, TAG, Manifest(config=parts[0], layers=parts[1:]).dump(), media_types.OCI_MANIFEST
        )
        if "redirect" in name:  # storage that needs no login, as S3 has it
            elsewhere.token = False
        ATTACKS[name].set_up(registry, elsewhere)
        return new_world(registry, Login(), HttpSettings(idle_timeout_s=0.3))

    yield make
    for registry in registries:
        registry.__exit__()


def ends_as(error, act):
    """``act`` ends with ``error`` and soon, and no word of it shows a secret or reaches a terminal."""
    began = time.monotonic()
    if error is None:
        act()
    else:
        with pytest.raises(error) as caught:
            act()
        text = str(caught.value)
        assert len(text) < 1500
        assert text.replace("\n", "").isprintable()
        for secret in (PASSWORD, "token-", "YWxpY2U6"):
            assert secret not in text
    assert time.monotonic() - began < 5


def test_every_attack_has_its_expectation():
    assert set(PULL) | set(PUSH) == set(ATTACKS)


@pytest.mark.parametrize("name", sorted(PULL))
def test_a_pull_withstands(attacked, elsewhere, name):
    world, store = attacked(name), MemoryTarget()

    def pull():
        reader = world.repository()
        pinned = reader.lookup(TAG)
        copy(reader, reader.lookup(str(pinned.digest)), store, tag="pulled")
        assert store.lookup("pulled").digest == pinned.digest

    ends_as(PULL[name], pull)

    # Whatever was stored is what its digest says, and a failed pull has no tag.
    for digest, data in store._content.items():
        assert Digest.of(data) == digest
    if PULL[name] is not None:
        with pytest.raises(NotFound):
            store.lookup("pulled")
    assert [item for item in elsewhere.requests if "authorization" in item.headers] == []


@pytest.mark.parametrize("name", sorted(PUSH))
def test_a_push_withstands(attacked, elsewhere, name):
    world = attacked(name)
    blob = LAYER + b"new"

    ends_as(PUSH[name], lambda: world.repository(writable=True).push(describe(blob), partial(io.BytesIO, blob)))

    assert [item for item in elsewhere.requests if "authorization" in item.headers] == []
