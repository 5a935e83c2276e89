"""What doctor says of a registry before it is asked: by what way, and who is asked first."""

import pytest

from envbuilder.cli.registries import Mirrors
from envbuilder.cli.registry_report import _mirrors, _proxy
from envbuilder.registry.addresses import Origin

HOST = Origin.of("https://registry.example/")


@pytest.mark.parametrize(
    ("proxies", "origin", "said"),
    [
        ({}, HOST, "none: https_proxy is not set"),
        ({"http": "http://p:1"}, HOST, "none: https_proxy is not set"),
        ({"https": "http://me:s3cr3t@p:1"}, HOST, "http://p:1"),
        ({"https": "p:1", "no": ".example"}, HOST, "none: no_proxy names it"),
        ({"http": "http://p:1"}, Origin.of("http://localhost:5000/"), "none: it is this machine"),
    ],
)
def test_the_proxy_is_the_one_that_requests_go_through(proxies, origin, said):
    assert _proxy(proxies, origin) == said


@pytest.mark.parametrize(
    ("mirrors", "said"),
    [
        (Mirrors((), "origin"), "none"),
        (
            Mirrors((("m.lan:5000", ""), ("c", "hub")), "fallback"),
            "m.lan:5000, c/hub, asked before it; what a tag names: fallback",
        ),
    ],
)
def test_mirrors_are_named_in_the_order_they_are_asked(mirrors, said):
    assert _mirrors(mirrors) == said


@pytest.mark.slow
def test_doctor_has_a_line_for_each(fresh, tmp_path):
    (tmp_path / "envbuilder").mkdir()
    (tmp_path / "envbuilder/config.toml").write_text('[registries."127.0.0.1:9"]\nmirrors = ["m.lan"]\n')

    found = fresh("doctor", "127.0.0.1:9", "--json", status=4, XDG_CONFIG_HOME=str(tmp_path)).stdout

    assert "m.lan, asked before it" in found
    assert "none: http_proxy is not set" in found or "none: it is this machine" in found
