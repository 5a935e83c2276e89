import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.errors import EnvbuilderError, UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index
from envbuilder.registry.credentials import Credential
from envbuilder.registry.errors import BadAnswer, Denied, ForbiddenAddress, Unauthorized
from envbuilder.registry.settings import HttpSettings
from envbuilder.testing.registry import FakeRegistry, Reply, body, endless, header, redirect, refuse

BLOB = bytes(range(256)) * 400
BASIC = "Basic " + base64.b64encode(b"alice:hunter22").decode()


@pytest.fixture
def guarded():
    with FakeRegistry(token=True) as registry:
        yield registry


class Login:
    """The same credentials for every host, so that a leak would show."""

    def __init__(self, identity_token=""):
        self.credential = Credential(username="alice", password="hunter22", identity_token=identity_token)

    def find(self, host, repository, actions=()):
        return self.credential

    def refused(self, host):
        pass


def leaked(registry):
    return [request for request in registry.requests if "authorization" in request.headers]


def test_a_token_is_fetched_once_with_credentials_and_then_used(new_world, guarded):
    world = new_world(guarded, Login())
    what = guarded.add_blob(BLOB)

    assert world.read(what) == world.read(what) == BLOB
    [token] = guarded.seen("GET", "/token")
    assert token.headers["authorization"] == BASIC
    assert token.query == {"service": ["fake"], "scope": ["repository:a/b:pull"]}
    assert [request.headers.get("authorization") for request in guarded.seen("GET", "/blobs/")] == [
        None,
        "Bearer token-1",
        "Bearer token-1",
    ]


def test_an_identity_token_is_traded_in_a_form(new_world, guarded):
    world = new_world(guarded, Login(identity_token="id-secret"))

    world.target.has(describe(BLOB))

    [trade] = guarded.seen("POST", "/token")
    assert b"grant_type=refresh_token" in trade.body
    assert b"refresh_token=id-secret" in trade.body
    assert "authorization" not in trade.headers


def test_what_the_registry_asks_for_besides_comes_first(new_world, guarded):
    """Some token servers honour only the first scope."""
    asked = f'Bearer realm="{guarded.url}/token",service="s",scope="repository:c/d:pull"'
    guarded.fault("HEAD", "/blobs/", header("WWW-Authenticate", asked), only=lambda r: "authorization" not in r.headers)

    new_world(guarded, Login()).push(BLOB)

    assert guarded.seen("GET", "/token")[0].query["scope"] == ["repository:c/d:pull", "repository:a/b:pull"]


def test_many_threads_fetch_one_token(new_world, guarded):
    world = new_world(guarded, Login())
    what = guarded.add_blob(BLOB)
    start = threading.Barrier(8)

    def read(index):
        start.wait(10)
        return world.target.fetch_range(what, index, 10)

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(read, range(8)))

    assert got == [BLOB[index : index + 10] for index in range(8)]
    assert len(guarded.seen("GET", "/token")) <= 2


def test_a_token_that_expires_between_ranges_is_renewed(new_world, guarded):
    world = new_world(guarded, Login())
    what = guarded.add_blob(BLOB)

    for offset in range(5):
        assert world.target.fetch_range(what, offset, 10) == BLOB[offset : offset + 10]
        guarded.expire_tokens()


def test_a_token_is_renewed_before_it_expires(new_world, guarded):
    world = new_world(guarded, Login())

    world.target.has(describe(BLOB))
    world.now += 200
    world.target.has(describe(BLOB))
    world.now += 50
    world.target.has(describe(BLOB))

    assert len(guarded.seen("GET", "/token")) == 2
    assert len([request for request in guarded.seen("HEAD") if "authorization" not in request.headers]) == 1


def test_an_expired_token_that_is_answered_with_403_is_renewed(new_world, guarded):
    world = new_world(guarded, Login())
    what = guarded.add_blob(BLOB)
    world.read(what)
    guarded.fault("GET", "/blobs/", refuse(403, "DENIED", "Your authorization token has expired"), times=1)

    assert world.read(what) == BLOB
    assert len(guarded.seen("GET", "/token")) == 2


def test_a_token_that_expires_during_an_upload_is_renewed_at_the_same_location(new_world, guarded):
    world = new_world(guarded, Login())

    def expire(request, reply):
        guarded.expire_tokens()
        return reply

    guarded.fault("POST", "/uploads/", expire, times=1)

    world.push(BLOB)

    assert guarded.blobs[str(describe(BLOB).digest)] == BLOB
    first, second = guarded.seen("PUT", "/uploads/")
    assert first.path == second.path
    assert len(guarded.seen("POST", "/uploads/")) == 1


def test_credentials_that_are_refused_do_not_block_what_anyone_may_read(new_world, guarded, caplog):
    world = new_world(guarded, Login())
    what = guarded.add_blob(BLOB)
    guarded.fault(
        "GET", "/token", lambda request, reply: Reply(status=401) if "authorization" in request.headers else reply
    )

    assert world.read(what) == BLOB
    assert "refused our credentials" in caplog.text


def test_credentials_that_are_refused_block_a_push_without_showing_them(new_world, guarded):
    world = new_world(guarded, Login())
    guarded.fault("GET", "/token", refuse(401, "UNAUTHORIZED", "bad hunter22"))

    with pytest.raises(Unauthorized, match="token for") as caught:
        world.repository(writable=True).has(describe(BLOB))
    assert "hunter22" not in str(caught.value)
    assert caught.value.hint


def test_a_registry_that_refuses_every_token_is_not_asked_forever(new_world, guarded):
    world = new_world(guarded, Login())
    guarded.fault(
        "HEAD",
        "/blobs/",
        lambda request, reply: Reply(status=401, headers={"WWW-Authenticate": f'Bearer realm="{guarded.realm}"'}),
    )

    with pytest.raises(Unauthorized):
        world.target.has(describe(BLOB))
    assert len(guarded.seen("HEAD")) <= 4


def test_basic_credentials_go_only_where_they_belong(new_world, registry):
    with FakeRegistry(basic="alice:hunter22") as main:
        what = registry.add_blob(BLOB)
        main.fault("GET", "/blobs/", redirect(f"{registry.url}/v2/a/b/blobs/{what.digest}?X-Amz-Signature=abc"))
        world = new_world(main, Login())

        assert world.read(what) == BLOB
        assert world.target.fetch_range(what, 5, 100) == BLOB[5:105]

    assert leaked(registry) == []
    assert len(leaked(main)) >= 1


def test_wrong_basic_credentials_are_refused_once(new_world):
    with FakeRegistry(basic="alice:other") as main:
        with pytest.raises(Unauthorized):
            new_world(main, Login()).target.has(describe(BLOB))

        assert len(main.seen("HEAD")) == 2


def test_a_redirect_is_remembered_and_asked_anew_when_it_expires(new_world, registry, guarded):
    what = registry.add_blob(BLOB)
    guarded.fault("GET", "/blobs/", redirect(f"{registry.url}/v2/a/b/blobs/{what.digest}?sig=1"))
    world = new_world(guarded)

    for offset in range(4):
        world.target.fetch_range(what, offset, 10)
    assert len([item for item in guarded.seen("GET", "/blobs/") if "authorization" in item.headers]) == 1

    registry.fault("GET", "/blobs/", refuse(403, "", "Request has expired"), times=1)
    assert world.target.fetch_range(what, 0, 10) == BLOB[:10]
    assert len([item for item in guarded.seen("GET", "/blobs/") if "authorization" in item.headers]) == 2
    world.now += 1000
    world.target.fetch_range(what, 0, 10)
    assert len([item for item in guarded.seen("GET", "/blobs/") if "authorization" in item.headers]) >= 3
    assert leaked(registry) == []


def test_a_challenge_of_a_foreign_origin_is_not_answered(new_world, guarded):
    with FakeRegistry(token=True) as foreign:
        what = foreign.add_blob(BLOB)
        guarded.fault("GET", "/blobs/", redirect(f"{foreign.url}/v2/a/b/blobs/{what.digest}"))

        with pytest.raises(Unauthorized):
            new_world(guarded, Login()).read(what)

        assert leaked(foreign) == []
        assert foreign.seen("GET", "/token") == []


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://0.0.0.0:1/",
        "http://[fe80::1]/",
        "file:///etc/passwd",
        "gopher://x/",
    ],
)
def test_a_redirect_to_where_no_registry_should_lead_is_refused(new_world, registry, location):
    what = registry.add_blob(BLOB)
    registry.fault("GET", "/blobs/", redirect(location))

    with pytest.raises(ForbiddenAddress):
        new_world(registry).read(what)


def test_redirects_in_a_circle_end(new_world, registry):
    what = registry.add_blob(BLOB)
    registry.fault("GET", "/blobs/", redirect(f"{registry.url}/v2/a/b/blobs/{what.digest}"))

    with pytest.raises(BadAnswer, match="more than 5 redirects"):
        new_world(registry).read(what)


@pytest.mark.parametrize(
    ("realm", "error"),
    [
        ("http://169.254.169.254/token", ForbiddenAddress),
        ("http://0.0.0.0:9/token", ForbiddenAddress),
        ("http://[::ffff:169.254.169.254]/token", ForbiddenAddress),
        ("http://alice@127.0.0.1/token", ForbiddenAddress),
        ("ftp://127.0.0.1/token", ForbiddenAddress),
        ("file:///token", ForbiddenAddress),
        ("/token", ForbiddenAddress),
        ("", ForbiddenAddress),
    ],
)
def test_a_realm_where_no_token_server_is_gets_nothing(new_world, realm, error):
    with FakeRegistry(token=True, realm=realm or "http://") as registry, pytest.raises(error):
        new_world(registry, Login()).target.has(describe(BLOB))


def test_a_realm_on_another_site_gets_no_credentials(new_world, registry, caplog):
    """127.0.0.1 and localhost are two hosts to us: nobody said that they have one owner."""
    port = registry.host.rpartition(":")[2]
    with FakeRegistry(token=True, realm=f"http://localhost:{port}/token") as main, pytest.raises(Unauthorized):
        new_world(main, Login()).target.has(describe(BLOB))

    assert registry.seen("GET", "/token")
    assert leaked(registry) == []
    assert "no credentials go to its token server" in caplog.text


def test_a_realm_that_the_user_trusts_gets_them(new_world, registry):
    port = registry.host.rpartition(":")[2]
    settings = HttpSettings(trusted_hosts=frozenset({"localhost"}))
    with FakeRegistry(token=True, realm=f"http://localhost:{port}/token") as main, pytest.raises(Unauthorized):
        new_world(main, Login(), settings).target.has(describe(BLOB))

    assert len(leaked(registry)) >= 1


def test_a_token_server_must_not_redirect(new_world, registry, guarded):
    guarded.fault("GET", "/token", redirect(f"{registry.url}/token"))

    with pytest.raises(BadAnswer, match="must not redirect"):
        new_world(guarded, Login()).target.has(describe(BLOB))
    assert registry.requests == []


@pytest.mark.parametrize(
    "fault",
    [
        body(lambda data: b"not json"),
        body(lambda data: b'{"token": 5}'),
        body(lambda data: b'{"token": ""}'),
        body(lambda data: json.dumps({"token": "a\r\nX-Evil: 1"}).encode()),
        body(lambda data: json.dumps({"token": "a b"}).encode()),
        body(lambda data: json.dumps({"token": "x" * 100_000}).encode()),
        endless,
    ],
)
def test_a_token_that_is_none_is_refused_without_being_shown(new_world, guarded, fault):
    guarded.fault("GET", "/token", fault)

    with pytest.raises(BadAnswer) as caught:
        new_world(guarded, Login()).target.has(describe(BLOB))
    assert len(str(caught.value)) < 300


def test_a_token_server_that_is_down_is_asked_again(new_world, guarded):
    guarded.fault("GET", "/token", refuse(503), times=2)
    world = new_world(guarded, Login())

    assert not world.target.has(describe(BLOB))
    assert len(world.waits) == 2


def test_a_refusal_says_what_the_registry_said(new_world, guarded):
    guarded.fault("GET", "/manifests/", refuse(403, "DENIED", "requested access to the resource is denied"))

    with pytest.raises(Denied, match="DENIED: requested access"):
        new_world(guarded, Login()).target.lookup("v1")


def test_no_secret_is_in_a_debug_log(new_world, guarded, caplog):
    caplog.set_level("DEBUG", logger="envbuilder")
    world = new_world(guarded, Login())
    guarded.fault("HEAD", "/blobs/", header("Set-Cookie", "session=cookie-secret"))

    world.push(BLOB)
    world.push(world.manifest(), media_types.OCI_MANIFEST)

    assert "/v2/a/b/blobs/uploads/" in caplog.text
    for secret in ("hunter22", BASIC.split()[1], "token-1", "secret/state", "secret%2Fstate", "cookie-secret"):
        assert secret not in caplog.text


#: Ways in which a server repeats the Authorization that it got, in what people are shown.
ECHOES = {
    "page": lambda sent: Reply(status=400, body=b"you sent " + sent.encode()),
    "JSON": lambda sent: Reply(status=400, body=json.dumps({"got": sent}).replace("/", "\\/").encode()),
    "code": lambda sent: Reply(
        status=400, body=json.dumps({"errors": [{"code": sent.split()[1], "message": ""}]}).encode()
    ),
    "quoted": lambda sent: Reply(status=400, body=quote(sent, safe="").encode()),
    "header": lambda sent: Reply(status=404, headers={"X-Echo": sent}),
    "link": lambda sent: Reply(status=404, headers={"Link": f"</v2/x?t={sent.split()[1]}>; rel=next"}),
    "warning": lambda sent: Reply(status=404, headers={"Warning": f'299 - "you sent {sent}"'}),
    "location": lambda sent: Reply(status=307, headers={"Location": f"http://127.0.0.1:1/{sent.split()[1]}"}),
    "digest": lambda sent: Reply(
        headers={"Docker-Content-Digest": f"sha256:{sent}", "Content-Type": media_types.OCI_INDEX},
        body=Index(manifests=()).dump(),
    ),
}


@pytest.mark.parametrize("password", ["hunter22/+?x", "long" * 200])
@pytest.mark.parametrize("echo", ECHOES)
def test_a_server_that_repeats_what_it_was_sent_shows_it_to_nobody(new_world, caplog, echo, password):
    caplog.set_level("DEBUG", logger="envbuilder")
    login = Credential(username="alice", password=password)
    source = SimpleNamespace(find=lambda *_: login, refused=lambda _host: None)
    with FakeRegistry(basic=f"alice:{password}") as registry:
        registry.fault(
            "GET",
            "/manifests/",
            lambda request, _reply: ECHOES[echo](request.headers["authorization"]),
            only=lambda request: "authorization" in request.headers,
            instead=True,
        )
        try:
            said = new_world(registry, source).target.lookup("v1")
        except EnvbuilderError as error:
            said = error

    shown = f"{said}\n{caplog.text}"
    assert "/manifests/v1" in shown
    for secret in (password[:20], quote(password[:20], safe=""), login.basic.split()[1][:20]):
        assert secret not in shown


def test_a_header_cannot_write_to_the_terminal(world, caplog):
    world.push(world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", header("Docker-Content-Digest", "sha256:\x1b]0;owned\x07"))

    world.repository().lookup(str(Digest.of(world.manifest())))

    assert "the bytes count" in caplog.text
    assert "\x1b" not in caplog.text


def test_no_cookie_is_ever_sent(new_world, registry):
    registry.fault("HEAD", "/blobs/", header("Set-Cookie", "session=1"))
    world = new_world(registry)

    world.push(BLOB)

    assert all("cookie" not in request.headers for request in registry.requests)


def test_an_answer_from_a_port_that_is_no_registry_is_an_error(new_world, registry):
    registry.fault("GET", "/manifests/", lambda request, reply: Reply(status=200, body=b"<html>hello</html>"))

    with pytest.raises(Exception, match="not JSON"):
        new_world(registry).target.lookup("v1")
    with pytest.raises(UnavailableError):
        registry.__exit__()
        new_world(registry).target.lookup("v1")
