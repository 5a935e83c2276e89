"""Settings: later sources win, each value knows its source, a wrong file is refused whole."""

from pathlib import Path

import pytest

from envbuilder.cli.registries import http_settings, mirrors_of
from envbuilder.cli.settings import load_settings
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.registry.settings import HostCertificates


def load(tmp_path, *, environ=None, flags=None, project="", user=""):
    (tmp_path / "project").mkdir()
    (tmp_path / "config/envbuilder").mkdir(parents=True)
    (tmp_path / "project/envbuilder.toml").write_text(project)
    (tmp_path / "config/envbuilder/config.toml").write_text(user)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **(environ or {})}
    return load_settings(project=tmp_path / "project", environ=environ, flags=flags or {}, uid=1000)


def test_the_project_s_file_beats_the_default(tmp_path):
    settings = load(tmp_path, project='store = "/a"')

    assert settings.by_key["store"].value == "/a"
    assert settings.by_key["store"].source.endswith("project/envbuilder.toml")


def test_the_user_s_file_beats_the_project_s(tmp_path):
    assert load(tmp_path, project='store = "/a"', user='store = "/b"').get("store") == "/b"


def test_a_variable_beats_the_files_and_a_flag_beats_all(tmp_path):
    settings = load(
        tmp_path,
        project='store = "/a"',
        environ={"ENVBUILDER_STORE": "/c", "ENVBUILDER_CACHE": "/x"},
        flags={"store": "/d"},
    )

    assert (settings.get("store"), settings.by_key["store"].source) == ("/d", "flag")
    assert (settings.get("cache"), settings.by_key["cache"].source) == ("/x", "environment")


def test_roles_come_from_tables_and_variables(tmp_path):
    settings = load(
        tmp_path, project='[mirrors]\ndebian = "file:/m"', environ={"ENVBUILDER_MIRRORS_DEBIAN_SECURITY": "file:/s"}
    )

    assert settings.section("mirrors") == {"debian": "file:/m", "debian-security": "file:/s"}


def test_every_problem_of_a_file_is_reported_at_once(tmp_path):
    with pytest.raises(SpecErrors) as caught:
        load(tmp_path, project='stor = "/a"\ncache = 1.5\n')

    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["stor", "cache"]
    assert "did you mean store?" in str(caught.value)


def test_a_file_that_is_not_toml_is_refused(tmp_path):
    with pytest.raises(SpecErrors, match=r"envbuilder\.toml"):
        load(tmp_path, project="store = ")


def test_an_ordinary_user_s_store_is_below_the_data_home(tmp_path):
    assert load(tmp_path, environ={"XDG_DATA_HOME": "/data"}).get("store") == "/data/envbuilder"


def test_root_s_store_is_the_machine_s(tmp_path):
    assert (
        load_settings(project=None, environ={"HOME": str(tmp_path)}, flags={}, uid=0).get("store")
        == "/var/lib/envbuilder"
    )


@pytest.mark.parametrize("text", ["store = " + "9" * 5000, "a = " + "[" * 5000, "store = 1979-13-99"])
def test_toml_that_no_reader_takes_is_refused_with_the_file(tmp_path, text):
    with pytest.raises(SpecErrors, match=r"envbuilder\.toml: not TOML"):
        load(tmp_path, project=text)


def test_a_project_may_not_choose_what_root_starts(tmp_path):
    with pytest.raises(SpecErrors, match=r"run\.runtime"):
        load(tmp_path, project='[run]\nruntime = "/tmp/x"')


def test_a_user_may_choose_the_runtime(tmp_path):
    assert load(tmp_path, user='[run]\nruntime = "crun"').get("run.runtime") == "crun"


@pytest.mark.parametrize("key", ["cache", "chunks", "state"])
def test_a_project_may_not_bring_what_a_machine_believes_it_has_checked(tmp_path, key):
    with pytest.raises(SpecErrors, match=f"{key}: a project may not choose"):
        load(tmp_path, project=f'{key} = "{tmp_path}/planted"')


@pytest.mark.parametrize(
    "text",
    [
        '[registries]\ninsecure = ["r.io"]',
        '[registries]\nunverified = ["r.io"]',
        '[registries]\ntrusted = ["r.io"]',
        '[registries]\nca-file = "x"',
        '[registries]\nlogin-file = "/tmp/x"',
        '[registries."r.io:5000"]\nca-file = "x"',
        '[registries."r.io:5000"]\ncredential-helper = "evil"',
    ],
)
def test_a_project_may_not_choose_whom_credentials_go_to(tmp_path, text):
    with pytest.raises(SpecErrors, match="a project may not choose"):
        load(tmp_path, project=text)


def test_a_registry_has_settings_of_its_own(tmp_path):
    user = '[registries."r.io:5000"]\nca-file = "a"\nclient-cert = "b"\n[registries."x.y"]\ncredential-helper = "p \'a b\'"\n'
    user += '[registries]\ninsecure = ["lan:5000", "other"]\nretry-budget-s = 5\n'
    settings = load(tmp_path, user=user)
    http = http_settings(settings, {"NO_PROXY": "x"})

    assert http.certificates["r.io:5000"] == HostCertificates(ca_file=Path("a"), client_cert=Path("b"))
    assert http.scheme_of("lan:5000") == http.scheme_of("other:99") == "http"
    assert http.scheme_of("lan") == http.scheme_of("r.io:5000") == "https"
    assert (http.retry_budget_s, http.proxies) == (5.0, {"no": "x"})


@pytest.mark.parametrize(
    "text",
    ['[registries]\nidle-timeout-s = "soon"', "[registries]\nidle-timeout-s = 0", '[registries."a b"]\nca-file = "x"'],
)
def test_a_registry_setting_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(SpecError, match="want"):
        http_settings(load(tmp_path, user=text), {})


def test_an_unknown_registry_setting_is_refused(tmp_path):
    with pytest.raises(SpecErrors, match="unknown setting"):
        load(tmp_path, user='[registries."r.io"]\nsecret = "x"')


def test_mirrors_of_a_host_are_read_in_their_order(tmp_path):
    settings = load(tmp_path, user='[registries."r.example"]\nmirrors = ["M.lan:5000", "cache.example/r.example/"]')

    assert mirrors_of(settings, "r.example").places == (("m.lan:5000", ""), ("cache.example", "r.example"))
    assert mirrors_of(settings, "other.example").places == ()
    assert mirrors_of(settings, "r.example").namespace == ""


@pytest.mark.parametrize(("host", "told"), [("r.example", "r.example"), ("index.docker.io", "docker.io")])
def test_mirrors_are_told_whose_they_are_where_that_is_asked_for(tmp_path, host, told):
    settings = load(tmp_path, user=f'[registries."{host}"]\nmirrors = ["m.lan"]\nmirror-ns = "on"')

    assert mirrors_of(settings, host).namespace == told


@pytest.mark.parametrize("text", ["http://m.lan:5000", "m.lan/a b", "m.lan/a:1", "/a"])
def test_what_is_no_mirror_is_refused_by_the_setting_s_name(tmp_path, text):
    settings = load(tmp_path, user=f'[registries."r.example"]\nmirrors = ["{text}"]')

    with pytest.raises(SpecError, match=r'registries."r\.example"\.mirrors: want HOST or HOST/PREFIX, got'):
        mirrors_of(settings, "r.example")
