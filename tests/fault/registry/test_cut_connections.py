"""A connection that is cut at every kind of byte: in the request line, the headers, the body, before and in the answer.

A wire between the client and the registry cuts one connection after so many bytes of either side. What one
push, pull and lazy read sends is measured first, so the cuts lie all over it. Most cuts are resets (RST), some ends (FIN).
"""

import io
import socket
from contextlib import contextmanager
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.registry import FakeRegistry
from envbuilder.testing.wire import Cut, Wire

LAYER = bytes(range(256)) * 40
#: Cuts on each side, spread evenly; and the first bytes one by one, where line and headers are.
SPREAD = 16
FIRST = (0, 1, 3, 5, 20, 60, 100, 150, 200, 250, 300)


@pytest.fixture
def image():
    target = MemoryTarget()
    config, layer = describe(b'{"os":"linux"}', media_types.OCI_CONFIG), describe(LAYER, media_types.OCI_LAYER_TAR)
    data = Manifest(config=config, layers=(layer,)).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((config, b'{"os":"linux"}'), (layer, LAYER), (root, data)):
        target.push(what, partial(io.BytesIO, content))
    return target, root


@contextmanager
def fake():
    """A registry that is reached by the wire only, uploads included."""
    with FakeRegistry() as registry:
        registry.relative_locations = True
        yield registry


def there_and_back(host, image, way):
    """Push and pull, one blob at a time, so that all of it goes over one connection as long as that holds."""
    source, root = image
    back = MemoryTarget()
    with RegistryClient(sleep=lambda _seconds: None) as client:
        target = RegistryTarget(
            RegistryReference(host, "a/b"),
            client,
            writable=True,
            upload=UploadSettings(way=way, chunk_size=1 << 20),
        )
        copy(source, root, target, tag="v1", jobs=1)
        copy(target, target.lookup("v1"), back, tag="v1", jobs=1)
        assert target.fetch_range(describe(LAYER), 100, 5000) == LAYER[100:5100]
    assert back.lookup("v1") == root


@pytest.mark.parametrize("side", ["up", "down"])
@pytest.mark.parametrize("gently", [False, True])
def test_the_wire_resets_or_ends_as_it_is_told(side, gently):
    with (
        socket.create_server(("127.0.0.1", 0)) as there,
        Wire(f"127.0.0.1:{there.getsockname()[1]}", cuts=[Cut(**{side: 4}, gently=gently)]) as wire,
        socket.create_connection(("127.0.0.1", int(wire.host.partition(":")[2]))) as near,
    ):
        far, _ = there.accept()
        with far:
            (near if side == "up" else far).sendall(b"12345678")
            for end in (near, far):
                end.settimeout(5)
                if gently:
                    assert end.recv(100) in (b"", b"1234")
                    assert end.recv(100) == b""
                else:
                    with pytest.raises(ConnectionResetError):
                        while end.recv(100):
                            pass


@pytest.mark.slow
@pytest.mark.parametrize("way", ["put", "stream", "chunks"])
@pytest.mark.parametrize("side", ["up", "down"])
def test_a_reset_anywhere_is_survived(image, way, side):
    with fake() as registry, Wire(registry.host) as wire:
        there_and_back(wire.host, image, way)
        total = getattr(wire, side)
    assert total > len(LAYER)

    places = sorted({*FIRST, *range(0, total, total // SPREAD)})
    for at, gently in [*((at, False) for at in places), *((at, True) for at in places[::5])]:
        with fake() as registry, Wire(registry.host, cuts=[Cut(**{side: at}, gently=gently)]) as wire:
            there_and_back(wire.host, image, way)

            assert wire.cuts == []
            assert {LAYER, b'{"os":"linux"}'} == set(registry.blobs.values())
            assert set(registry.tags("a/b")) == {"v1"}


@pytest.mark.parametrize("cut", [Cut(up=0), Cut(up=10), Cut(up=400), Cut(down=0), Cut(down=8), Cut(down=100)])
def test_resets_without_end_are_an_error_and_leave_no_tag(image, cut):
    with fake() as registry, Wire(registry.host, cuts=[cut] * 500) as wire:
        with pytest.raises(UnavailableError, match="destination "):
            there_and_back(wire.host, image, "put")

        # What was asked may have been done although no answer came: then all of it is there.
        blobs = {LAYER, b'{"os":"linux"}'}
        assert registry.tags("a/b") == [] or blobs == set(registry.blobs.values())
