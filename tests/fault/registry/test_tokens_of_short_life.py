"""Tokens and credentials that end while they are used, names that change their address, and who is asked how often."""

import io
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import pytest

from envbuilder.digest import describe
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import ForbiddenAddress, RegistryDown, Unauthorized
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.registry.upload import UploadSettings
from envbuilder.testing import servers
from envbuilder.testing.proxy import RecordingProxy
from envbuilder.testing.registry import FakeRegistry, Reply, redirect
from envbuilder.testing.servers import docker_registry, make_certificates

BLOB = bytes(range(256)) * 400


class Renewing:
    """Credentials that change each time they are refused, as a program's of short life do."""

    def __init__(self, *names):
        self.names, self.asked = list(names), []

    def find(self, host, repository, actions=()):
        self.asked.append((host, repository, actions))
        return Credential(username=self.names[0], password="hunter22")

    def refused(self, host):
        if len(self.names) > 1:
            self.names.pop(0)


def only_for(name):
    """A token server that knows one user."""
    word = Credential(username=name, password="hunter22").basic

    def fault(request, reply):
        return reply if request.headers.get("authorization") == word else Reply(status=401)

    return fault


@pytest.fixture
def guarded():
    with FakeRegistry(token=True) as registry:
        yield registry


def test_a_refused_credential_is_asked_for_anew_before_going_on_without_it(new_world, guarded, caplog):
    login = Renewing("old", "new")
    guarded.fault("GET", "/token", only_for("new"))
    world = new_world(guarded, login)
    what = guarded.add_blob(BLOB)

    assert world.read(what) == BLOB
    assert "without them" not in caplog.text
    assert login.asked[0] == (guarded.host, "a/b", ("pull",))


def test_a_push_is_asked_for_as_a_push(new_world, guarded):
    login = Renewing("alice")

    new_world(guarded, login).repository(writable=True).has(describe(BLOB))

    assert {asked[1:] for asked in login.asked} == {("a/b", ("pull", "push"))}


def test_a_registry_token_is_sent_as_it_is(new_world, guarded):
    class Token(Renewing):
        def find(self, host, repository, actions=()):
            return Credential(registry_token="token-1")

    guarded._token()
    what = guarded.add_blob(BLOB)

    assert new_world(guarded, Token("x")).read(what) == BLOB
    assert guarded.seen("GET", "/token") == []


def test_one_refusal_answers_all_who_wait_for_the_same_token(new_world, guarded):
    """Eight wrong passwords in a row lock an account."""
    guarded.fault("GET", "/token", lambda request, reply: time.sleep(0.1) or Reply(status=401))
    world = new_world(guarded, Renewing("alice"))
    world.target = world.repository(writable=True)
    with pytest.raises(Unauthorized):
        world.target.has(describe(BLOB))
    asked = len(guarded.seen("GET", "/token"))
    start = threading.Barrier(8)

    def ask(_):
        start.wait(10)
        with pytest.raises(Unauthorized):
            world.target.has(describe(BLOB))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert len(guarded.seen("GET", "/token")) - asked <= 2


@pytest.mark.parametrize("status", [401, 403])
def test_a_token_that_ends_between_the_chunks_of_an_upload_is_renewed_each_time(new_world, guarded, status):
    world = new_world(guarded, Renewing("alice"))
    target = world.repository(writable=True, upload=UploadSettings(way="chunks", chunk_size=20_000))

    def expire(request, reply):
        guarded.expire_tokens()
        return reply

    def say(request, reply):
        return Reply(status=status, headers=reply.headers if status == 401 else {}) if reply.status == 401 else reply

    guarded.fault("PATCH", "/uploads/", expire)
    guarded.fault("PATCH", "/uploads/", say)
    target.push(describe(BLOB), partial(io.BytesIO, BLOB))

    assert guarded.blobs[str(describe(BLOB).digest)] == BLOB
    assert len(guarded.seen("GET", "/token")) >= 5


def test_a_token_is_chosen_after_a_slow_source_was_read_to_where_the_chunk_begins(new_world, guarded):
    """To send a chunk again, a source that cannot seek is read from its start: that may outlast any token."""
    world = new_world(guarded, Renewing("alice"))
    target = world.repository(writable=True, upload=UploadSettings(way="chunks", chunk_size=20_000))
    opened = []

    class Slow(io.BytesIO):
        def read(self, size=-1):
            if len(opened) > 1 and self.tell() < 60_000:
                guarded.expire_tokens()
            return super().read(size)

    def expire_once(request, reply):
        if len(guarded.seen("PATCH", "/uploads/")) == 4:
            guarded.expire_tokens()
        return reply

    guarded.fault("PATCH", "/uploads/", expire_once)

    def open_content():
        opened.append(1)
        return Slow(BLOB)

    target.push(describe(BLOB), open_content)

    assert guarded.blobs[str(describe(BLOB).digest)] == BLOB
    assert len(opened) == 2


@pytest.mark.slow
def test_a_real_registry_with_tokens_of_seconds_is_pushed_to_and_read_slowly(tmp_path, require_tool):
    require_tool("docker-registry")
    make_certificates(tmp_path)

    class Slow(io.BytesIO):
        def read(self, size=-1):
            time.sleep(0.4)
            return super().read(min(size, 16 << 10) if size > 0 else size)

    class Alice(Renewing):
        def find(self, host, repository, actions=()):
            return Credential(username=servers.USER, password=servers.PASSWORD)

    realm = "https://auth.registry.test/token"
    with docker_registry(tmp_path / "r", auth="token", realm=realm, token_life_s=2) as registry:
        leads = {"registry.test": registry.host, "auth.registry.test": urlsplit(registry.token_url).netloc}
        with RecordingProxy(leads, tmp_path) as proxy:
            settings = HttpSettings(ca_file=tmp_path / "ca.crt", proxies={"https": proxy.url})
            with RegistryClient(settings, Alice("x")) as client:
                target = RegistryTarget(RegistryReference("registry.test", "a/b"), client, writable=True)
                target.push(describe(BLOB), partial(Slow, BLOB))
                for offset in range(5):
                    assert target.fetch_range(describe(BLOB), offset, 10) == BLOB[offset : offset + 10]
                    time.sleep(0.7)

    assert len(proxy.to("auth.registry.test")) >= 3
    refused = [item for item in proxy.to("registry.test") if "authorization" not in item.headers]
    assert len(refused) == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["put", "chunks"])
def test_a_real_registry_that_refuses_tokens_in_the_middle_of_a_throttled_upload_gets_the_whole_blob(
    tmp_path, require_tool, way, caplog
):
    """Nothing tells us beforehand: the token's answer says 300 s, the registry takes it for 2 s."""
    require_tool("docker-registry")
    caplog.set_level("DEBUG", logger="envbuilder")
    content, opened = BLOB * 3, []

    class Slow(io.BytesIO):
        def read(self, size=-1):
            time.sleep(0.25 if way == "chunks" else 0)
            return super().read(min(size, 16 << 10) if size > 0 else size)

    class Alice(Renewing):
        def find(self, host, repository, actions=()):
            return Credential(username=servers.USER, password=servers.PASSWORD)

    def open_content():
        opened.append(1)
        # The first time the token ends before the body is there.
        time.sleep(3.1 if way == "put" and len(opened) == 1 else 0)
        return Slow(content)

    what = describe(content)
    with (
        docker_registry(tmp_path, auth="token", token_ends_s=2) as registry,
        RegistryClient(credentials=Alice("x")) as client,
    ):
        upload = UploadSettings(way=way, chunk_size=32 << 10)
        target = RegistryTarget(RegistryReference(registry.host, "a/b"), client, writable=True, upload=upload)
        target.push(what, open_content)
        with target.fetch(what) as stream:
            assert stream.read() == content

    again = [
        line for line in caplog.text.splitlines() if "again after 401" in line and ("PATCH" in line or "PUT" in line)
    ]
    assert len(again) >= (2 if way == "chunks" else 1)


def test_a_name_that_turns_to_our_own_address_after_it_was_judged_is_not_followed(monkeypatch, registry):
    """DNS rebinding: public when it is judged, ours when it is connected to. It is resolved once, so both are one."""
    asked, real = [], socket.getaddrinfo

    def resolve(host, port, *rest, **options):
        if host != "rebinding.test":
            return real(host, port, *rest, **options)
        asked.append(host)
        address = "203.0.113.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    what = registry.add_blob(BLOB)
    with FakeRegistry() as other, RegistryClient(HttpSettings(connect_timeout_s=0.05)) as client:
        port = other.host.rpartition(":")[2]
        registry.fault("GET", "/blobs/", redirect(f"http://rebinding.test:{port}/x"))
        client.transport._meet(client.registry(registry.host).origin, "8.8.8.8")
        client.retry = type(client.retry)(attempts=1)
        target = RegistryTarget(RegistryReference(registry.host, "a/b"), client)

        with pytest.raises((RegistryDown, ForbiddenAddress)):
            target.fetch(what).read()
        with pytest.raises(ForbiddenAddress):
            target.fetch(what).read()
        assert other.requests == []


def test_a_registry_that_was_met_far_away_cannot_lead_to_this_machine(registry, monkeypatch):
    """Its own name may turn to 127.0.0.1 after the first answer: the address that answered counts."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **options: real("127.0.0.1" if host == "far.test" else host, *rest, **options),
    )
    port = registry.host.rpartition(":")[2]
    what = registry.add_blob(BLOB)
    with FakeRegistry() as neighbour, RegistryClient(HttpSettings(plain_hosts=frozenset({"far.test"}))) as client:
        registry.fault("GET", "/blobs/", redirect(f"{neighbour.url}/v2/a/b/blobs/{what.digest}"))
        client.transport._meet(client.registry(f"far.test:{port}").origin, "8.8.8.8")

        with pytest.raises(ForbiddenAddress, match="loopback"):
            RegistryTarget(RegistryReference(f"far.test:{port}", "a/b"), client).fetch(what).read()
        assert neighbour.requests == []


def test_a_mistake_in_our_own_code_is_not_tried_again(new_world, guarded):
    world, calls = new_world(guarded), []

    def broken(*_, **__):
        calls.append(1)
        raise TypeError("a mistake")

    world.client.transport.send = broken
    with pytest.raises(TypeError):
        world.target.has(describe(BLOB))
    assert (len(calls), world.waits) == (1, [])


@pytest.mark.parametrize("location", ["http://" + "a" * 80 + ".test/", "http://x..test/"])
def test_a_name_that_is_none_is_refused_at_once(new_world, registry, location):
    what = registry.add_blob(BLOB)
    registry.fault("GET", "/blobs/", redirect(location))
    world = new_world(registry)

    with pytest.raises((ForbiddenAddress, RegistryDown)):
        world.read(what)
    assert len(world.waits) <= 4


def test_every_request_is_logged_with_its_reason(new_world, guarded, caplog):
    caplog.set_level("DEBUG", logger="envbuilder")
    world = new_world(guarded, Renewing("alice"))

    world.push(BLOB)

    for reason in ("is this blob there", "again after 401", "with our credentials", "begin an upload", "send a blob"):
        assert reason in caplog.text
