"""Credentials of netrc and of apt's auth.conf: which entry is for which address."""

import os

import pytest
from uv import find_uv_bin

from envbuilder.lock.logins import Login, apt_logins, netrc_logins, parse_logins, uv_logins, with_login
from envbuilder.lock.settings import read_python_indexes
from envbuilder.proc import run

TEXT = """\
# a comment
machine one.example login me password p@ss
machine two.example
  login you
  password word
macdef init
cd /

default login anonymous password nobody
"""


def test_entries_are_read_and_the_default_is_not():
    assert [(each.machine, each.user, each.password) for each in parse_logins(TEXT)] == [
        ("one.example", "me", "p@ss"),
        ("two.example", "you", "word"),
    ]


def test_a_login_shows_no_secret():
    assert "s3cr3t" not in repr(Login("h", "u", "s3cr3t"))


@pytest.mark.parametrize(
    ("machine", "url", "fits"),
    [
        ("h", "https://h/simple", True),
        ("h", "https://h:8443/simple", True),
        ("h:8443", "https://h:8443/simple", True),
        ("h:8443", "https://h/simple", False),
        ("h", "https://h.evil/simple", False),
        ("h", "https://evil/h", False),
        ("h/debian", "https://h/debian/pool", True),
        ("h/debian", "https://h/debian-security", False),
        ("http://h", "http://h/x", True),
        ("https://h", "http://h/x", False),
        ("h", "/srv/h", False),
        ("h", "https://a:b@h/simple", False),
    ],
)
def test_a_login_is_for_its_own_machine_only(machine, url, fits):
    assert (with_login(url, [Login(machine, "me", "p@ss")]) != url) == fits


def test_a_login_without_a_scheme_is_not_sent_in_plain_text_where_apt_would_not():
    logins = [Login("h", "me", "pw")]

    assert with_login("http://h/x", logins) == "http://me:pw@h/x"
    assert with_login("http://h/x", logins, plain_http=False) == "http://h/x"


def test_indexes_get_the_logins_of_netrc_for_downloads(tmp_path):
    (tmp_path / "n").write_text("machine h.example login me password pw")
    environment = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "n"), "UV_NO_CONFIG": "1"}
    indexes = read_python_indexes(environment, {"default": "https://h.example/simple"})

    assert indexes.all["default"] == "https://me:pw@h.example/simple"
    assert indexes.role_of("https://h.example/simple") == "default"
    assert netrc_logins({}) == ()


def test_apts_files_are_read_in_order(tmp_path):
    (tmp_path / "etc/apt/auth.conf.d").mkdir(parents=True)
    (tmp_path / "etc/apt/auth.conf").write_text("machine a login x password y")
    (tmp_path / "etc/apt/auth.conf.d/b.conf").write_text("machine b login x password y")

    assert [login.machine for login in apt_logins(tmp_path)] == ["a", "b"]


STORED = """
[[credential]]
service = "https://pkgs.example/corp/"
username = "me"
scheme = "basic"
password = "s3cret"

[[credential]]
service = "https://other.example/"
scheme = "bearer"
token = "t"
"""


def test_what_uv_stored_is_for_its_service_only(tmp_path):
    folder = tmp_path / ".local/share/uv/credentials"
    folder.mkdir(parents=True)
    (folder / "credentials.toml").write_text(STORED)
    environment = {"HOME": str(tmp_path)}
    configured = {"corp": "https://pkgs.example/corp/simple", "page": "flat+https://pkgs.example/corp/links.html"}
    found = read_python_indexes(environment, {**configured, "else": "https://pkgs.example/else/simple"}).all

    assert found["corp"] == "https://me:s3cret@pkgs.example/corp/simple"
    assert found["page"] == "flat+https://me:s3cret@pkgs.example/corp/links.html"
    assert found["else"] == "https://pkgs.example/else/simple"
    assert uv_logins({"HOME": str(tmp_path), "UV_CREDENTIALS_DIR": str(tmp_path)}) == ()
    (folder / "credentials.toml").write_text("not toml")
    assert uv_logins(environment) == ()


@pytest.mark.slow
def test_what_uv_stores_is_what_we_read(tmp_path):
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    run(
        [find_uv_bin(), "auth", "login", "https://pkgs.example", "--username", "me", "--password", "p"], env=environment
    )

    assert uv_logins(environment) == (Login("https://pkgs.example", "me", "p"),)
