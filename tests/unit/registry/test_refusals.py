import pytest

from envbuilder.errors import HostError, UnavailableError
from envbuilder.registry.addresses import Origin
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.errors import (
    Denied,
    ForbiddenAddress,
    RateLimited,
    RegistryDown,
    Rejected,
    Unauthorized,
    parse_refusal,
    refusal_error,
)
from envbuilder.registry.realms import judge, same_site
from envbuilder.registry.redact import redact_headers
from envbuilder.registry.retry import RetryPolicy, parse_retry_after
from envbuilder.registry.settings import HttpSettings
from envbuilder.store.target import NotFound


def body(code, message=""):
    return parse_refusal(b'{"errors":[{"code":"%s","message":"%s"}]}' % (code.encode(), message.encode()))


@pytest.mark.parametrize(
    ("status", "code", "error", "family"),
    [
        (401, "UNAUTHORIZED", Unauthorized, HostError),
        (403, "DENIED", Denied, HostError),
        (404, "NAME_UNKNOWN", NotFound, NotFound),
        (429, "TOOMANYREQUESTS", RateLimited, UnavailableError),
        (503, "", RegistryDown, UnavailableError),
        (400, "MANIFEST_INVALID", Rejected, Rejected),
        (400, "DENIED", Denied, HostError),
    ],
)
def test_a_status_and_a_code_decide_who_must_act(status, code, error, family):
    got = refusal_error("GET x", status, body(code, "why"))

    assert type(got) is error
    assert isinstance(got, family)
    assert str(status) in str(got)
    assert "why" in str(got)
    assert got.hint


@pytest.mark.parametrize(
    ("status", "code", "text", "exit_code"),
    [
        *((status, "", "", 4) for status in (408, 429, 500, 502, 503, 504)),
        (403, "TOOMANYREQUESTS", "slow down", 4),
        (401, "UNAUTHORIZED", "", 5),
        (403, "DENIED", "requested access to the resource is denied", 5),
        (403, "DENIED", "quota exceeded", 5),
        (404, "NAME_UNKNOWN", "repository name not known to registry", 6),
        (400, "TAG_INVALID", "The image tag 'v1' already exists and cannot be overwritten: the tag is immutable", 6),
        (412, "PRECONDITION", "Quota exceeded when processing the request", 6),
        (413, "SIZE_INVALID", "", 6),
        (405, "UNSUPPORTED", "", 6),
        (501, "UNSUPPORTED", "", 6),
        (507, "", "no space", 6),
    ],
)
def test_the_exit_status_says_whether_asking_later_can_help(status, code, text, exit_code):
    assert refusal_error("PUT x", status, body(code, text)).exit_code == exit_code


@pytest.mark.parametrize(
    ("text", "hint"), [("the tag is immutable", "under another tag"), ("Quota exceeded when processing", "Make room")]
)
def test_a_refusal_for_good_says_what_would_help(text, hint):
    assert hint in refusal_error("PUT x", 412, body("PRECONDITION", text)).hint


def test_what_a_server_says_cannot_write_to_the_terminal():
    assert parse_refusal(b"\x1b[2J<html>\r\nbad").text == "[2J<html> bad"


def test_a_secret_that_a_server_echoes_is_blotted_out():
    assert parse_refusal(b"bad password hunter22", ["hunter22"]).text == "bad password ..."


def test_headers_in_a_log_show_no_secret():
    shown = redact_headers({"Authorization": "Basic x", "Location": "https://s3/x?X-Amz-Signature=abc", "Range": "0-1"})

    assert shown == {"Authorization": "...", "Location": "https://s3/x?X-Amz-Signature=...", "Range": "0-1"}


def test_waits_double_and_end():
    policy = RetryPolicy(attempts=4, first_s=1, longest_s=3)

    assert [policy.wait_s(attempt, 0, None, 0.999999) for attempt in (1, 2, 3, 4)] == pytest.approx([1, 2, 3, None])


@pytest.mark.parametrize(
    ("text", "want"), [("7", 7.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("soon", None), (None, None), ("-1", None)]
)
def test_retry_after_is_seconds_or_a_date(text, want):
    assert parse_retry_after(text, 10) == want


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("r.io", "r.io"),
        ("registry.example.com", "auth.example.com"),
        ("registry.example.com", "example.com"),
        ("registry-1.docker.io", "auth.docker.io"),
        ("quay.io", "cdn.quay.io"),
    ],
)
def test_sites_of_one_owner_are_recognised(one, other):
    assert same_site(one, other)
    assert same_site(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a.com", "b.com"),
        ("a.co.uk", "b.co.uk"),
        ("a.azurecr.io", "b.azurecr.io"),
        ("bucket.s3.amazonaws.com", "amazonaws.com"),
        ("mine.s3.amazonaws.com", "theirs.s3.amazonaws.com"),
        ("mine.blob.core.windows.net", "theirs.blob.core.windows.net"),
        ("10.0.0.1", "10.0.0.2"),
        ("registry", "auth"),
        ("example.com", "evilexample.com"),
        ("example.com.evil.org", "example.com"),
    ],
)
def test_sites_of_different_owners_are_not(one, other):
    assert not same_site(one, other)


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        ("localhost:5000", "http"),
        ("127.0.0.1", "http"),
        ("[::1]:5000", "http"),
        ("r.io", "https"),
        ("listed.corp:5000", "http"),
        ("10.0.0.1:5000", "https"),
    ],
)
def test_plain_http_is_for_this_machine_and_for_hosts_that_were_listed(host, scheme):
    assert HttpSettings(plain_hosts=frozenset({"listed.corp"})).scheme_of(host) == scheme


@pytest.mark.parametrize("location", ["http://r.test/x", "HTTP://R.test:443/x", "http://other.test/x"])
def test_nothing_leads_from_https_to_http(location):
    registry = RegistryClient().registry("r.test")

    with pytest.raises(ForbiddenAddress, match="from https to http"):
        registry.follow(location, "https://r.test/v2/")
    assert registry.follow("/x", "https://r.test/v2/") == "https://r.test/x"


@pytest.mark.parametrize("realm", ["http://r.test/token", "http://auth.r.test/token"])
def test_a_token_server_without_tls_is_not_asked_for_a_registry_with_it(realm):
    registry = Origin("https", "r.test", 443)

    with pytest.raises(ForbiddenAddress, match="want https"):
        judge(realm, registry, "r.test", HttpSettings())
    assert judge(realm.replace("http:", "https:"), registry, "r.test", HttpSettings()).is_own
