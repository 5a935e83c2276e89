"""Where Debian packages come from."""

import pytest

from envbuilder.lock.archives import (
    NoMirror,
    archives_of,
    find_archives,
    mmdebstrap_archives,
    paragraphs,
    parse_deb822,
    parse_one_line,
    snapshot_archives,
)

DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
Enabled: no
URIs: http://disabled.example/debian
Suites: bookworm bookworm-updates
Components: main
"""
BOTH = {"debian": "http://mirror.example/debian", "debian-security": "http://mirror.example/debian-security"}


def test_paragraphs_join_continuation_lines():
    assert list(paragraphs("A: 1\n 2\n\n\nB: x: y\n")) == [{"a": "1\n2"}, {"b": "x: y"}]


def test_deb822_sources_give_both_archives():
    assert archives_of(parse_deb822(DEB822)) == BOTH


def test_one_line_sources_give_both_archives():
    text = """
    deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian trixie main
    deb-src http://mirror.example/debian trixie main
    deb http://mirror.example/debian-security trixie-security main contrib # security
    # deb http://old.example/debian buster main
    """

    assert archives_of(parse_one_line(text)) == BOTH


def test_the_security_suites_of_old_releases_are_known():
    assert archives_of(parse_one_line("deb http://s.example/d buster/updates main")) == {
        "debian-security": "http://s.example/d"
    }


@pytest.mark.parametrize(
    "line",
    [
        "deb http://archive.example/ubuntu noble main universe",
        "deb http://vendor.example/debian bookworm stable",
        "deb http://vendor.example/apt bookworm-pgdg main",
        "deb cdrom:[Debian]/ bookworm main",
        "deb [trusted=yes] copy:/srv bookworm main",
        "",
    ],
)
def test_archives_of_others_are_not_debians(line):
    assert archives_of(parse_one_line(line)) == {}


def test_a_vendor_that_uses_debians_names_comes_after_debian():
    vendor = "deb http://vendor.example/debian bookworm main\n"

    assert archives_of(parse_one_line(vendor) + parse_deb822(DEB822)) == BOTH


def test_mmdebstraps_defaults_are_read_from_its_source():
    text = """
        my $mirror    = 'http://mirror.example/debian';
        my $secmirror = 'http://mirror.example/debian-security';
        $mirror = 'http://other.example/ubuntu';
    """

    assert mmdebstrap_archives(text) == BOTH


@pytest.fixture
def root(tmp_path):
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir(parents=True)
    return tmp_path


def test_a_host_without_mirrors_gets_an_error_that_names_the_setting(root):
    with pytest.raises(NoMirror) as caught:
        find_archives({}, root=root)

    assert "mirrors.debian in envbuilder.toml" in caught.value.hint
    assert "ENVBUILDER_MIRRORS_DEBIAN" in caught.value.hint


def test_settings_win_over_apts_sources_and_these_over_mmdebstrap(root):
    (root / "usr/bin/mmdebstrap").write_text(
        "my $mirror = 'http://m.example/debian';\nmy $secmirror = 'http://m.example/s';\n"
    )
    assert find_archives({}, root=root)["debian-security"] == "http://m.example/s"

    (root / "etc/apt/sources.list.d/debian.sources").write_text(DEB822)
    (root / "etc/apt/sources.list.d/x.list.disabled").write_text("deb http://no.example/debian bookworm main")
    assert find_archives({}, root=root) == BOTH

    found = find_archives({"debian": "http://mine.example/debian/"}, root=root)
    assert found == BOTH | {"debian": "http://mine.example/debian"}


def test_a_host_that_names_the_main_archive_alone_has_the_security_archive_beside_it(root):
    (root / "etc/apt/sources.list").write_text("deb http://mirror.example/debian trixie main")

    assert find_archives({}, root=root) == BOTH


def test_a_main_archive_of_another_name_says_nothing_about_the_security_archive(root):
    (root / "etc/apt/sources.list").write_text("deb http://snapshot.example/20260101T000000Z trixie main")

    with pytest.raises(NoMirror, match="debian-security"):
        find_archives({}, root=root)


def test_a_dated_suite_has_its_archives_at_that_moment():
    configured = {
        "debian-snapshot": "https://a.example/debian/{date}/",
        "debian-security-snapshot": "https://a.example/s/{date}",
    }

    assert snapshot_archives(configured, "20261101T000000Z") == {
        "debian": "https://a.example/debian/20261101T000000Z",
        "debian-security": "https://a.example/s/20261101T000000Z",
    }


@pytest.mark.parametrize("root", ["", "https://a.example/debian/20250101T000000Z"])
def test_a_dated_suite_needs_an_archive_that_can_be_asked_for_a_moment(root):
    with pytest.raises(NoMirror, match=r"mirrors\.debian-snapshot: want an address with \{date\}") as caught:
        snapshot_archives({"debian-snapshot": root}, "20261101T000000Z")
    assert "ENVBUILDER_MIRRORS_DEBIAN_SNAPSHOT" in caught.value.hint
