import io
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.registry import FakeRegistry


class World:
    """A fake registry, a client whose waiting takes no time, and a repository."""

    def __init__(self, registry, credentials=None, settings=None):
        self.waits = []
        self.now = 0.0
        self.registry = registry
        self.client = RegistryClient(
            settings, credentials, sleep=self.sleep, clock=lambda: self.now, jitter=lambda: 0.5
        )
        self.target = self.repository()

    def repository(self, name="a/b", **options):
        return RegistryTarget(RegistryReference(self.registry.host, name), self.client, **options)

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.now += seconds

    def push(self, data, media_type="application/octet-stream"):
        what = describe(data, media_type)
        self.target.push(what, partial(io.BytesIO, data))
        return what

    def read(self, what, *, into=False):
        """All of a blob; ``into``: by a buffer of ours that is used again."""
        with self.target.fetch(what) as stream:
            if not into:
                return stream.read()
            room, data = memoryview(bytearray(150_000)), b""
            while got := stream.readinto(room):
                data += room[:got]
            return data

    def manifest(self, **fields):
        return Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=(), **fields).dump()


@pytest.fixture
def registry():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def world(registry):
    world = World(registry)
    yield world
    world.client.close()


@pytest.fixture
def new_world():
    """Makes worlds: ``new_world(registry, credentials)``."""
    worlds = []

    def make(*args, **options):
        worlds.append(World(*args, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.client.close()
