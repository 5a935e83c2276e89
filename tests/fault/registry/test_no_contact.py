"""A registry that is not there: said within a second, unless it was there before; and every wait is told."""

import logging
import socket

import pytest

from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.errors import RegistryDown
from envbuilder.registry.pools import UntrustedServer
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.registry import FakeRegistry, refuse


@pytest.fixture
def waits():
    return []


@pytest.fixture
def lookup(waits):
    """``lookup(host)`` asks a registry; what it waited is in ``waits``."""

    def ask(host, settings=None):
        with RegistryClient(settings, sleep=waits.append) as client:
            RegistryTarget(RegistryReference(host, "a/b"), client).lookup("v1")

    return ask


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return f"127.0.0.1:{port}"


def unresolved(monkeypatch, number):
    def fail(*_args, **_options):
        raise socket.gaierror(number, "no such name")

    monkeypatch.setattr("socket.getaddrinfo", fail)


def test_nobody_listening_is_said_after_three_knocks(lookup, waits, closed_port, caplog):
    with pytest.raises(RegistryDown, match="refused") as caught:
        lookup(closed_port)

    assert len(waits) == 2
    assert sum(waits) < 1
    assert caught.value.exit_code == 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "refused; again in 0." in caplog.text


def test_a_name_that_nobody_has_is_said_at_once(lookup, waits, monkeypatch):
    unresolved(monkeypatch, socket.EAI_NONAME)

    with pytest.raises(RegistryDown, match="no such name"):
        lookup("registry.test")
    assert waits == []


def test_a_resolver_that_does_not_answer_is_asked_three_times(lookup, waits, monkeypatch):
    unresolved(monkeypatch, socket.EAI_AGAIN)

    with pytest.raises(RegistryDown):
        lookup("registry.test")
    assert len(waits) == 2


def test_a_server_that_speaks_no_tls_is_said_at_once(lookup, waits, registry):
    class Https(HttpSettings):
        def scheme_of(self, host):
            return "https"

    with pytest.raises(UntrustedServer):
        lookup(registry.host, Https())
    assert waits == []


def test_a_registry_that_answered_and_went_away_is_waited_for(new_world):
    with FakeRegistry() as registry:
        world = new_world(registry)
        what = world.push(b"{}")
    world.client.transport.close()

    with pytest.raises(RegistryDown):
        world.target.fetch(what)
    assert len(world.waits) == 4
    assert sum(world.waits) > 5


def test_waits_for_one_registry_are_one_line_in_five_seconds(world, caplog):
    world.registry.fault("GET", "/manifests/", refuse(503))

    with pytest.raises(RegistryDown, match="503"):
        world.target.lookup("v1")

    # 0.4, 0.8, 1.5 and 3 s: the last begins 2.6 s after the first.
    assert len(world.waits) == 4
    assert len(caplog.records) == 1
