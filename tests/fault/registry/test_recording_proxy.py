"""No credential goes to a foreign origin: a proxy that sees all says so, over whole pushes, pulls and lazy reads."""

import base64
import io
import shutil
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import pytest

from envbuilder.digest import describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.credentials import Credential
from envbuilder.registry.retry import RetryPolicy
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.target import RegistryTarget
from envbuilder.testing import servers
from envbuilder.testing.proxy import RecordingProxy
from envbuilder.testing.registry import FakeRegistry, Reply, redirect
from envbuilder.testing.servers import docker_registry, make_certificates
from envbuilder.testing.storage import s3_storage

pytestmark = pytest.mark.slow
BLOB = bytes(range(256)) * 400
#: Of the fake registry, which takes any; the real one knows a single user.
SECRET = "hunter22-of-nobody-else"


def basic(password):
    return base64.b64encode(f"{servers.USER}:{password}".encode()).decode()


class Login:
    """The same credentials for every host, so that a leak would show."""

    def __init__(self, password):
        self.password = password

    def find(self, host, repository, actions=()):
        return Credential(username=servers.USER, password=self.password)

    def refused(self, host):
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def through(certificates):
    """``through(proxy, **settings)``: a repository of https://registry.test, reached through the proxy alone."""
    clients = []

    def make(proxy, password=SECRET):
        settings = HttpSettings(ca_file=certificates / "ca.crt", proxies={"https": proxy.url, "http": proxy.url})
        clients.append(RegistryClient(settings, Login(password), retry=RetryPolicy(attempts=2, first_s=0.01)))
        return RegistryTarget(RegistryReference("registry.test", "a/b"), clients[-1], writable=True)

    yield make
    for client in clients:
        client.close()


def use(target):
    """A whole push, pull and lazy read; what came back."""
    blob = describe(BLOB)
    config = describe(b"{}", media_types.OCI_CONFIG)
    data = Manifest(config=config, layers=(blob,)).dump()
    manifest = describe(data, media_types.OCI_MANIFEST)
    for what, content in ((blob, BLOB), (config, b"{}"), (manifest, data)):
        target.push(what, partial(io.BytesIO, content))
    target.tag(manifest, "v1")
    assert target.lookup("v1") == manifest
    with target.fetch(blob) as stream:
        assert stream.read() == BLOB
    return [target.fetch_range(blob, offset, 100) for offset in (0, 5000)]


def assert_nothing_leaked(proxy, tokens=(), trusted=("registry.test", "auth.registry.test"), password=SECRET):
    """Authorization headers, passwords and tokens went to the registry and its token server only, each where it belongs."""
    assert proxy.sent
    for item in proxy.sent:
        name = urlsplit(item.origin).hostname
        secrets = [basic(password), password, *tokens]
        if name not in trusted:
            assert "authorization" not in item.headers, item
            assert "cookie" not in item.headers, item
            assert not any(item.holds(secret) for secret in secrets), item
        if "authorization" in item.headers:
            assert item.origin.startswith("https://"), item
        if name == "registry.test" and "/token" not in item.target:
            assert not item.holds(basic(password)), item


def tokens_of(proxy):
    """Bearer tokens that the client used."""
    sent = {item.headers.get("authorization", "") for item in proxy.sent}
    return sorted(text.removeprefix("Bearer ") for text in sent if text.startswith("Bearer "))


def test_a_real_registry_with_its_token_server(certificates, through, tmp_path, require_tool):
    require_tool("docker-registry")
    realm = "https://auth.registry.test/token"
    with docker_registry(tmp_path, auth="token", realm=realm) as registry:
        leads = {"registry.test": registry.host, "auth.registry.test": urlsplit(registry.token_url).netloc}
        with RecordingProxy(leads, certificates) as proxy:
            assert use(through(proxy, servers.PASSWORD)) == [BLOB[:100], BLOB[5000:5100]]

    assert_nothing_leaked(proxy, tokens_of(proxy), password=servers.PASSWORD)
    assert all(
        item.headers["authorization"] == f"Basic {basic(servers.PASSWORD)}" for item in proxy.to("auth.registry.test")
    )
    assert tokens_of(proxy)
    assert {urlsplit(item.origin).hostname for item in proxy.sent} == {"registry.test", "auth.registry.test"}


def test_a_real_registry_whose_blobs_are_read_from_s3_on_another_origin(certificates, through, tmp_path, require_tool):
    require_tool("docker-registry")
    realm, bucket = "https://auth.registry.test/token", "registry.storage.test"
    with ExitStack() as stack:
        storage, s3 = stack.enter_context(s3_storage(tmp_path))
        # The registry's redirects to a host of one's own choosing are not signed.
        storage["s3"]["objectacl"] = "public-read"
        made = docker_registry(
            tmp_path / "r", auth="token", realm=realm, storage=storage, redirect_to=f"https://{bucket}"
        )
        registry = stack.enter_context(made)
        leads = {
            "registry.test": registry.host,
            "auth.registry.test": urlsplit(registry.token_url).netloc,
            bucket: s3.host,
        }
        with RecordingProxy(leads, certificates) as proxy:
            assert use(through(proxy, servers.PASSWORD)) == [BLOB[:100], BLOB[5000:5100]]

    assert_nothing_leaked(proxy, tokens_of(proxy), password=servers.PASSWORD)
    assert len(tokens_of(proxy)) >= 1
    assert {item.method for item in proxy.to(bucket)} >= {"GET"}
    assert {urlsplit(item.origin).hostname for item in proxy.sent} == {*leads}


def test_blobs_that_are_stored_on_another_origin(certificates, through):
    with FakeRegistry(token=True, realm="https://registry.test/token") as registry, FakeRegistry() as storage:
        storage.blobs = registry.blobs
        registry.uploads.url = "https://registry.test"
        for method in ("GET", "HEAD"):
            registry.fault(
                method,
                "/blobs/sha256",
                lambda request, reply: (
                    redirect(f"https://storage.test{request.path}?X-Amz-Signature=c0ffee")(request, reply)
                    if reply.status in (200, 206)
                    else reply
                ),
            )
        leads = {"registry.test": registry.host, "storage.test": storage.host}
        with RecordingProxy(leads, certificates) as proxy:
            assert use(through(proxy)) == [BLOB[:100], BLOB[5000:5100]]

    assert_nothing_leaked(proxy, tokens_of(proxy))
    assert [item.method for item in proxy.to("storage.test")].count("GET") >= 3


def test_an_upload_that_goes_to_another_origin(certificates, through):
    with FakeRegistry(token=True, realm="https://registry.test/token") as registry:
        registry.uploads.url = "https://storage.test"
        with FakeRegistry() as storage:
            storage.blobs, storage.uploads = registry.blobs, registry.uploads
            leads = {"registry.test": registry.host, "storage.test": storage.host}
            with RecordingProxy(leads, certificates) as proxy:
                assert use(through(proxy)) == [BLOB[:100], BLOB[5000:5100]]

    assert_nothing_leaked(proxy, tokens_of(proxy))
    assert {item.method for item in proxy.to("storage.test")} == {"PUT"}


@pytest.mark.parametrize(
    "evil",
    [
        "realm",
        "plain-realm",
        "challenge",
        "upload",
        "downgrade",
        "token-redirect",
    ],
)
def test_a_hostile_registry_gets_no_credential_to_another_origin(certificates, through, evil):
    realms = {"realm": "https://evil.test/token", "plain-realm": "http://auth.registry.test/token"}
    with (
        FakeRegistry(token=True, realm=realms.get(evil, "https://registry.test/token")) as registry,
        FakeRegistry(token=True, realm="https://evil.test/token") as other,
    ):
        registry.add_blob(BLOB)
        registry.uploads.url = {"upload": "https://evil.test", "downgrade": "http://registry.test"}.get(
            evil, "https://registry.test"
        )
        if evil == "challenge":
            registry.fault("GET", "/blobs/", redirect("https://evil.test/v2/a/b/blobs/x"))
        if evil == "token-redirect":
            registry.fault(
                "GET",
                "/token",
                lambda request, reply: Reply(status=307, headers={"Location": "https://evil.test/token"}),
            )
        leads = {"registry.test": registry.host, "evil.test": other.host, "auth.registry.test": other.host}
        with RecordingProxy(leads, certificates) as proxy:
            target = through(proxy)
            for act in (lambda: use(target), lambda: target.fetch_range(describe(BLOB), 0, 10)):
                with pytest.raises(EnvbuilderError):
                    act()
                    if evil in ("realm", "upload", "downgrade"):
                        raise EnvbuilderError("reading alone may be allowed")

    assert_nothing_leaked(proxy, tokens_of(proxy))
