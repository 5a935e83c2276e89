"""Certificates, with a real server: what is trusted, what is not, and what the user is told."""

import contextlib
import shutil
import socket
import socketserver
import threading

import pytest

from envbuilder.digest import describe
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.errors import RegistryDown
from envbuilder.registry.pools import UntrustedServer
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.settings import HostCertificates, HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow
BLOB = describe(b"absent")


class Https(HttpSettings):
    """This machine speaks http by default; these tests are about https."""

    def scheme_of(self, host):
        return "https"


def ask(registry, **settings):
    with RegistryClient(Https(**settings), retry=RetryPolicy(attempts=1)) as client:
        return RegistryTarget(RegistryReference(registry.host, "a/b"), client).has(BLOB)


@pytest.fixture(scope="module")
def tools():
    for name in ("docker-registry", "openssl"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def secure(tools, tmp_path_factory):
    with docker_registry(tmp_path_factory.mktemp("tls"), tls=True) as registry:
        yield registry


@pytest.fixture(scope="module")
def mutual(tools, tmp_path_factory):
    with docker_registry(tmp_path_factory.mktemp("mtls"), tls=True, mutual=True) as registry:
        yield registry


def test_a_server_of_an_unknown_ca_is_not_spoken_to(secure):
    with pytest.raises(UntrustedServer, match="certificate verify failed") as caught:
        ask(secure)
    assert "certs.d/" in caught.value.hint


def test_a_ca_file_is_trusted(secure):
    assert not ask(secure, ca_file=secure.directory / "ca.crt")


def test_a_ca_below_certs_d_is_trusted_for_its_host_only(secure, tmp_path):
    place = tmp_path / secure.host
    place.mkdir()
    shutil.copy(secure.directory / "ca.crt", place / "ca.crt")

    assert not ask(secure, certificate_dirs=(tmp_path,))

    place.rename(tmp_path / "other.host")
    with pytest.raises(UntrustedServer):
        ask(secure, certificate_dirs=(tmp_path,))


def test_a_client_certificate_is_sent_to_the_host_it_is_for(mutual, tmp_path):
    place = tmp_path / mutual.host
    place.mkdir()
    for name in ("ca.crt", "client.cert", "client.key"):
        shutil.copy(mutual.directory / name, place / name)

    assert not ask(mutual, certificate_dirs=(tmp_path,))

    (place / "client.cert").unlink()
    with pytest.raises((RegistryDown, UntrustedServer)):
        ask(mutual, certificate_dirs=(tmp_path,))


def test_a_ca_and_a_client_certificate_are_configured_for_one_host(mutual):
    own = HostCertificates(
        ca_file=mutual.directory / "ca.crt",
        client_cert=mutual.directory / "client.cert",
        client_key=mutual.directory / "client.key",
    )

    assert not ask(mutual, certificates={mutual.host: own})
    assert not ask(mutual, certificates={mutual.host.rpartition(":")[0]: own})
    with pytest.raises(UntrustedServer):
        ask(mutual, certificates={"other.host": own})


def test_a_certificate_is_left_unchecked_only_where_that_is_asked(secure, caplog):
    assert not ask(secure, unverified_hosts=frozenset({secure.host}))
    assert "is not checked" in caplog.text
    with pytest.raises(UntrustedServer):
        ask(secure, unverified_hosts=frozenset({"other.host"}))


def test_a_plain_server_is_recognised_and_not_fallen_back_to(registry):
    with pytest.raises(UntrustedServer) as caught:
        ask(registry)
    assert "plain http" in caught.value.hint
    assert registry.requests == []


def test_a_broken_certificate_file_is_said(secure, tmp_path):
    (tmp_path / "ca.crt").write_text("nonsense")

    with pytest.raises(UntrustedServer, match="certificates of this machine"):
        ask(secure, ca_file=tmp_path / "ca.crt")


class Tunnel(socketserver.StreamRequestHandler):
    """A CONNECT proxy that leads every name to one server."""

    def handle(self):
        self.server.asked.append(self.rfile.readline().decode().split()[:2])
        while self.rfile.readline().strip():
            pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(self.server.leads_to) as far:
            back = threading.Thread(target=self.pump, args=(far, self.request))
            back.start()
            self.pump(self.request, far)
            back.join()

    def pump(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def test_https_goes_through_a_proxy_as_a_tunnel_with_the_registry_s_own_certificate(secure):
    host, _, port = secure.host.rpartition(":")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as proxy:
        proxy.daemon_threads, proxy.asked, proxy.leads_to = True, [], (host, int(port))
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        settings = HttpSettings(
            ca_file=secure.directory / "ca.crt", proxies={"https": f"http://127.0.0.1:{proxy.server_address[1]}"}
        )
        with RegistryClient(settings, retry=RetryPolicy(attempts=1)) as client:
            found = RegistryTarget(RegistryReference("registry.test", "a/b"), client).has(BLOB)
        proxy.shutdown()

    assert not found
    assert proxy.asked == [["CONNECT", "registry.test:443"]]


def test_plain_http_goes_through_a_proxy_whole_and_not_to_those_named_in_no_proxy(registry):
    settings = HttpSettings(
        plain_hosts=frozenset({"registry.test"}),
        proxies={"http": f"http://alice:secret@{registry.host}", "no": "other.test"},
    )
    with RegistryClient(settings, retry=RetryPolicy(attempts=1)) as client:
        assert not RegistryTarget(RegistryReference("registry.test", "a/b"), client).has(BLOB)

    [request] = registry.requests
    assert request.headers["host"] == "registry.test"
    assert request.headers["proxy-authorization"].startswith("Basic ")

    aside = HttpSettings(
        plain_hosts=frozenset({"registry.test"}),
        proxies={"http": f"http://{registry.host}", "no": "registry.test"},
    )
    with RegistryClient(aside, retry=RetryPolicy(attempts=1)) as client, pytest.raises(RegistryDown):
        RegistryTarget(RegistryReference("registry.test", "a/b"), client).has(BLOB)
