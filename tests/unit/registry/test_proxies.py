import traceback

import pytest

from envbuilder.registry.addresses import Origin
from envbuilder.registry.pools import BadProxy
from envbuilder.registry.proxies import is_exempt, proxies_of, proxy_for
from envbuilder.registry.settings import HttpSettings
from envbuilder.registry.transport import Transport

ORIGIN = Origin("https", "registry.corp", 5000)


def test_lower_case_wins_and_upper_case_counts():
    environment = {"HTTPS_PROXY": "http://upper", "NO_PROXY": "a", "https_proxy": "http://lower", "http_proxy": ""}

    assert proxies_of(environment) == {"https": "http://lower", "no": "a"}
    assert proxies_of({"HTTPS_PROXY": "http://upper"}) == {"https": "http://upper"}


def test_a_header_of_a_cgi_client_is_no_proxy():
    assert proxies_of({"HTTP_PROXY": "http://evil", "REQUEST_METHOD": "GET"}) == {}
    assert proxies_of({"HTTP_PROXY": "http://p"}) == {"http": "http://p"}


@pytest.mark.parametrize(
    "no_proxy", ["*", "registry.corp", "corp", ".corp", "*.corp", "x, Registry.Corp:5000 ", "a.b,,corp:5000"]
)
def test_a_host_below_a_name_of_no_proxy_is_exempt(no_proxy):
    assert is_exempt(ORIGIN, no_proxy)


@pytest.mark.parametrize("no_proxy", ["", " ", ".", "*.", "egistry.corp", "registry.corp:443", "10.0.0.0/8", "[::1]"])
def test_a_host_that_no_proxy_does_not_name_is_not(no_proxy):
    assert not is_exempt(ORIGIN, no_proxy)


@pytest.mark.parametrize(
    ("host", "no_proxy", "exempt"),
    [
        ("10.1.2.3", "10.0.0.0/8", True),
        ("11.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3:443", True),
        ("10.1.2.3", "2.3", False),
        ("fd00::5", "fd00::/8", True),
        ("fd00::5", "[fd00::5]:443", True),
        ("fd00::5", "fd00::5", True),
        ("fd00::5", "[fd00::5]:80", False),
    ],
)
def test_an_address_is_exempt_by_its_network(host, no_proxy, exempt):
    assert is_exempt(Origin("https", host, 443), no_proxy) is exempt


def test_this_machine_is_reached_without_a_proxy_and_each_scheme_has_its_own():
    proxies = {"https": "proxy:3128", "http": "http://p:1"}

    assert proxy_for(proxies, ORIGIN) == "http://proxy:3128"
    assert proxy_for(proxies, Origin("http", "registry.corp", 80)) == "http://p:1"
    assert proxy_for(proxies, Origin("https", "localhost", 443)) == ""
    assert proxy_for({"http": "p"}, ORIGIN) == ""


@pytest.mark.parametrize("proxy", ["socks5://alice:secret@p:1", "http://", "ftp://p", "http://alice:secret@p:99999"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(proxy):
    with pytest.raises(BadProxy, match="want the URL of") as caught:
        Transport(HttpSettings(proxies={"https": proxy})).send("GET", f"{ORIGIN}/v2/", headers={})
    # As --debug shows it, with all that led to it.
    assert "secret" not in "".join(traceback.format_exception(caught.value))
