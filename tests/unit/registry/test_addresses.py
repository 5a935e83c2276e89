import traceback

import pytest

from envbuilder.registry.addresses import Kind, Origin, allowed_addresses, is_loopback_name, kind_of
from envbuilder.registry.errors import ForbiddenAddress
from envbuilder.registry.pools import make_pool
from envbuilder.registry.settings import HttpSettings


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("93.184.216.34", Kind.GLOBAL),
        ("2606:4700::1", Kind.GLOBAL),
        ("10.0.0.1", Kind.PRIVATE),
        ("192.168.1.1", Kind.PRIVATE),
        ("172.16.0.1", Kind.PRIVATE),
        ("100.64.0.1", Kind.PRIVATE),
        ("fd00::1", Kind.PRIVATE),
        ("127.0.0.1", Kind.LOOPBACK),
        ("127.8.8.8", Kind.LOOPBACK),
        ("::1", Kind.LOOPBACK),
        ("::ffff:127.0.0.1", Kind.LOOPBACK),
        ("::ffff:10.0.0.1", Kind.PRIVATE),
        ("64:ff9b::7f00:1", Kind.LOOPBACK),
        ("2002:7f00:1::", Kind.LOOPBACK),
        ("169.254.169.254", Kind.FORBIDDEN),
        ("::ffff:169.254.169.254", Kind.FORBIDDEN),
        ("fe80::1%eth0", Kind.FORBIDDEN),
        ("168.63.129.16", Kind.FORBIDDEN),
        ("100.100.100.200", Kind.FORBIDDEN),
        ("::ffff:168.63.129.16", Kind.FORBIDDEN),
        ("fd00:ec2::254", Kind.FORBIDDEN),
        ("0.0.0.0", Kind.FORBIDDEN),
        ("::", Kind.FORBIDDEN),
        ("224.0.0.1", Kind.FORBIDDEN),
        ("255.255.255.255", Kind.FORBIDDEN),
    ],
)
def test_an_address_is_judged_by_what_it_reaches(address, kind):
    assert kind_of(address) is kind


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "127.0.0.1", "[::1]", "::1"])
def test_names_of_this_machine_are_known_without_asking(name):
    assert is_loopback_name(name)


@pytest.mark.parametrize("name", ["localhost.example.org", "127.0.0.1.example.org", "10.0.0.1", "host", "2130706433"])
def test_other_names_are_not_this_machine(name):
    assert not is_loopback_name(name)


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("https://Host.Example/x", Origin("https", "host.example", 443)),
        ("http://host.example:80/", Origin("http", "host.example", 80)),
        ("https://[::1]:5000/", Origin("https", "::1", 5000)),
        ("https://host.example./", Origin("https", "host.example", 443)),
    ],
)
def test_an_origin_is_scheme_host_and_port(url, want):
    assert Origin.of(url) == want


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "file:///etc/passwd",
        "//host/",
        "https://user:password@host/",
        "https://host@evil/",
        "https://host:99999/",
        "https://host\\@evil/",
        "https://ho\tst/",
        "https:///x",
        "https://hé/",
    ],
)
def test_a_url_that_parsers_may_read_differently_is_refused(url):
    with pytest.raises(ForbiddenAddress) as caught:
        Origin.of(url)
    assert "password" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "0.0.0.0"])
def test_a_name_is_judged_after_resolution(host):
    with pytest.raises(ForbiddenAddress, match="a registry points to the"):
        allowed_addresses(host, 80, Kind.PRIVATE)


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518"])
def test_an_address_is_judged_before_a_proxy_gets_it_however_it_is_written(host):
    settings = HttpSettings(proxies={"http": "http://proxy.test:3128"})
    origin = Origin("http", host, 80)

    with pytest.raises(ForbiddenAddress):
        make_pool(settings, origin, Kind.GLOBAL, lambda _address: None)


def test_a_loopback_registry_may_name_loopback_and_never_the_metadata_service():
    assert "127.0.0.1" in allowed_addresses("localhost", 80, Kind.LOOPBACK)
    with pytest.raises(ForbiddenAddress):
        allowed_addresses("169.254.169.254", 80, Kind.LOOPBACK)


def test_a_secret_where_a_port_should_be_is_not_shown():
    secret = "HUNTER22".lower()  # the traceback has this file's lines, too

    with pytest.raises(ForbiddenAddress) as caught:
        Origin.of(f"https://host.test:{secret}/")
    assert secret not in "".join(traceback.format_exception(caught.value))
