"""Which index each role means on this machine."""

import pytest

from envbuilder.errors import SpecErrors
from envbuilder.lock.download import without_credentials
from envbuilder.lock.settings import Indexes, python_indexes, read_python_indexes

A, B = "https://a.example/simple", "https://b.example/simple"


@pytest.mark.parametrize(
    ("environment", "uv", "pip"),
    [
        ({"UV_DEFAULT_INDEX": A, "UV_INDEX_URL": B, "PIP_INDEX_URL": B}, [f'index-url = "{B}"'], []),
        ({"UV_DEFAULT_INDEX": f"corp={A}"}, [], []),
        ({"UV_INDEX_URL": A}, [f'[[index]]\nurl = "{B}"\ndefault = true'], []),
        ({}, [f'[[index]]\nname = "n"\nurl = "{A}"\ndefault = true', f'index-url = "{B}"'], []),
        ({}, [f'index-url = "{A}"', f'index-url = "{B}"'], []),
        ({}, [f'[pip]\nindex-url = "{A}"'], [f"[global]\nindex-url = {B}"]),
    ],
)
def test_uvs_own_default_is_found_and_left_to_uv(environment, uv, pip):
    found = python_indexes(environment, {}, uv_files=uv, pip_files=pip)

    assert found.all["default"] == A
    assert set(found.all.values()) == {A}
    assert found.for_uv == {}


@pytest.mark.parametrize(
    ("environment", "pip"),
    [({"PIP_INDEX_URL": A}, [f"[global]\nindex-url = {B}"]), ({}, ["no ini", f"[global]\nindex-url = {A}"])],
)
def test_pips_default_is_told_to_uv(environment, pip):
    found = python_indexes(environment, {}, pip_files=pip)

    assert (found.all, found.for_uv) == ({"default": A}, {"default": A})


def test_our_settings_come_first():
    found = python_indexes({"UV_DEFAULT_INDEX": B}, {"default": A, "torch": B})

    assert found.all == found.for_uv == {"default": A, "torch": B}


def test_named_indexes_of_uv_are_roles():
    found = python_indexes(
        {"UV_INDEX": f"one={A} {B}", "UV_DEFAULT_INDEX": B}, {}, uv_files=[f'[[index]]\nname = "two"\nurl = "{B}"']
    )

    assert found.all == {"one": A, "two": B, "default": B}
    assert found.several


def test_a_flat_index_of_uv_is_a_page_of_links_or_a_folder():
    text = """
[[index]]
name = "page"
url = "https://links.example/all.html"
format = "flat"

[[index]]
name = "folder"
url = "/srv/wheels"
format = "flat"
"""
    found = python_indexes({}, {}, uv_files=[text])

    assert found.all["page"] == "flat+https://links.example/all.html"
    assert found.all["folder"] == "/srv/wheels"
    assert found.role_of("https://links.example/all.html") == "page"


def test_credentials_of_a_named_index_come_from_uvs_variables():
    environment = {
        "UV_INDEX": f"my-corp={A}",
        "UV_INDEX_MY_CORP_USERNAME": "alice",
        "UV_INDEX_MY_CORP_PASSWORD": "s@c",
        "UV_DEFAULT_INDEX": B,
    }

    assert python_indexes(environment, {}).all == {"my-corp": "https://alice:s%40c@a.example/simple", "default": B}


def test_a_machine_that_configures_nothing_has_a_default_all_the_same():
    found = python_indexes({}, {})

    assert found.all["default"].startswith("https://")
    assert not found.several


def test_a_role_is_found_by_address_without_credentials_or_slash():
    indexes = Indexes(all={"default": A, "mine": "https://u:p@b.example/simple/"})

    assert indexes.role_of(B) == "mine"
    assert indexes.role_of(A + "/") == "default"
    assert indexes.role_of("https://c.example") is None


def test_files_are_read_where_uv_and_pip_read_them(tmp_path):
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text(f'[[index]]\nname = "n"\nurl = "{A}"')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {B}")
    environment = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "XDG_CONFIG_DIRS": ""}

    assert read_python_indexes(environment, {}).all == {"n": A, "default": B}
    assert read_python_indexes(environment | {"UV_NO_CONFIG": "1"}, {}).all == {"default": B}


def test_a_broken_uv_file_is_told(tmp_path):
    (tmp_path / "uv.toml").write_text("x =")

    with pytest.raises(SpecErrors, match="uv's configuration: not TOML"):
        read_python_indexes({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}, {})


@pytest.mark.parametrize(
    "address",
    [
        "https://me:s3cr3t@h example/simple",
        "https://me:x/s3cr3t@h.example/simple",
        "https://me:s3cr3t@h.example:99999/simple",
        "https://me:s3cr3t@[::1/simple",
        "flat+https://me:s3cr3t@h.example:port/links",
        "https:///s3cr3t",
    ],
)
def test_an_index_that_is_no_address_is_told_without_what_it_says(tmp_path, address):
    (tmp_path / "uv.toml").write_text(f'[[index]]\nname = "corp"\nurl = "{address}"')
    uvs = {"UV_CONFIG_FILE": str(tmp_path / "uv.toml"), "UV_INDEX_CORP_USERNAME": "me"}
    for environment, configured in (({}, {"corp": address}), (uvs, {})):
        with pytest.raises(SpecErrors, match=r"indexes\.corp: not an address") as refused:
            read_python_indexes(environment, configured)

        assert "s3cr3t" not in str(refused.value)


def test_what_is_no_address_is_shown_without_a_password():
    assert without_credentials("https://me:s3cr3t@[::1/simple") == "https://[::1/simple"


def test_a_relative_folder_of_uvs_and_an_address_with_an_at_sign_are_left_alone(tmp_path):
    (tmp_path / "uv.toml").write_text('[[index]]\nname = "near"\nurl = "./wheels"\nformat = "flat"')
    address = "https://h.example/feed@view/simple"

    found = read_python_indexes({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}, {"azure": address})

    assert found.all["azure"] == address
    assert "near" in found.all
