"""Settings: later sources win, each value knows its source, a wrong file is refused whole."""

import pytest

from envbuilder.cli.settings import load_settings
from envbuilder.errors import SpecErrors


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
