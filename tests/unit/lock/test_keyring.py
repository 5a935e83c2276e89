"""Passwords that uv keeps in a keyring, asked of a ``keyring`` of our own."""

import logging
import os
from pathlib import Path

import pytest

from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Interpreter
from envbuilder.lock.python import IndexRefused, resolve_wheels
from envbuilder.lock.settings import read_python_indexes
from envbuilder.lock.uv import PythonTarget, Uv
from envbuilder.lock.wanted import Wanted
from envbuilder.oci.platform import Platform
from envbuilder.proc import run
from envbuilder.testing.index import PackageIndex

KEYRING = """#!/bin/sh
echo "$@" >> "$HOME/asked"
[ "$2 $3" = "$SERVICE alice" ] && echo s3cr3t
[ "$2 $3" = "$SERVICE --mode" ] && printf 'alice\\ns3cr3t\\n'
[ "$2" = "$SERVICE" ]
"""
TARGET = PythonTarget(
    python=Interpreter(version="3.13", tag="cp313"), full_version="3.13.5", platform=Platform("x86_64"), glibc="2.41"
)


@pytest.fixture
def keyring(tmp_path):
    """Variables of a machine whose keyring knows alice at what SERVICE says."""
    program = tmp_path / "bin/keyring"
    program.parent.mkdir()
    program.write_text(KEYRING)
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_HTTP_RETRIES": "0",
        "UV_KEYRING_PROVIDER": "subprocess",
        "SERVICE": "https://h.example/simple",
    }


def asked(keyring):
    file = Path(keyring["HOME"], "asked")
    return file.read_text().splitlines() if file.exists() else []


def test_a_password_is_asked_once_and_only_when_an_address_is_looked_at(keyring):
    found = read_python_indexes(
        keyring, {"corp": "https://alice@h.example/simple", "page": "flat+https://x/l.html"}
    ).all

    assert ("corp" in found, len(found), asked(keyring)) == (True, 3, [])
    assert [found["corp"] for _ in range(3)] == ["https://alice:s3cr3t@h.example/simple"] * 3
    assert found["page"] == "flat+https://x/l.html"
    assert asked(keyring) == ["get https://h.example/simple alice"]


def test_the_host_is_asked_for_what_the_address_does_not_have(keyring):
    keyring["SERVICE"] = "h.example:8443"
    found = read_python_indexes(keyring, {"corp": "flat+https://alice@h.example:8443/links"}).all

    assert found["corp"] == "flat+https://alice:s3cr3t@h.example:8443/links"
    assert asked(keyring) == ["get https://h.example:8443/links alice", "get h.example:8443 alice"]


@pytest.mark.parametrize(
    ("changed", "url"),
    [
        ({"UV_KEYRING_PROVIDER": ""}, "https://alice@h.example/simple"),
        ({"UV_KEYRING_PROVIDER": "disabled"}, "https://alice@h.example/simple"),
        ({}, "https://h.example/simple"),
        ({}, "https://alice:own@h.example/simple"),
        ({}, "/srv/wheels"),
    ],
    ids=["not told", "forbidden", "nobody", "known", "a folder"],
)
def test_nothing_is_asked_that_uv_would_not_ask(keyring, changed, url):
    assert read_python_indexes(keyring | changed, {"corp": url}).all["corp"] == url
    assert asked(keyring) == []


def test_uvs_configuration_may_tell_it_and_ask_for_the_user_too(keyring):
    del keyring["UV_KEYRING_PROVIDER"]
    folder = Path(keyring["HOME"], ".config/uv")
    folder.mkdir(parents=True)
    entry = '[[index]]\nname = "corp"\nurl = "https://h.example/simple"\nauthenticate = "always"\n'
    (folder / "uv.toml").write_text(f'keyring-provider = "subprocess"\n{entry}')

    assert read_python_indexes(keyring, {}).all["corp"] == "https://alice:s3cr3t@h.example/simple"
    assert asked(keyring) == ["get https://h.example/simple --mode creds"]


@pytest.mark.parametrize("user", ["bob", "alice"])
def test_a_keyring_that_does_not_know_or_is_not_there_leaves_the_address_and_no_trace(keyring, caplog, user):
    gone = {} if user == "bob" else {"PATH": "/nowhere"}
    with caplog.at_level(logging.DEBUG):
        found = read_python_indexes(keyring | {"SERVICE": "x"} | gone, {"corp": f"https://{user}@h.example/simple"}).all

        assert found["corp"] == f"https://{user}@h.example/simple"
    assert "s3cr3t" not in caplog.text


def test_doctor_asks_no_keyring(keyring):
    found = read_python_indexes(keyring, {"corp": "https://alice@h.example/simple"}, runner=None)

    assert (dict(found.all)["corp"], asked(keyring)) == ("https://alice@h.example/simple", [])


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["our setting", "uv's own"])
def test_a_package_behind_a_keyring_is_locked_and_fetched(keyring, tmp_path, caplog, named):
    with PackageIndex() as index, caplog.at_level(logging.DEBUG):
        wheel = index.add("a", "1")
        index.user = "alice:s3cr3t"
        keyring["SERVICE"] = index.url
        url = index.url.replace("://", "://alice@")
        environment = keyring if named else keyring | {"UV_DEFAULT_INDEX": url}
        indexes = read_python_indexes(environment, {"default": url} if named else {})
        uv = Uv(runner=run, environment=environment, indexes=indexes)

        assert resolve_wheels(Wanted(requires=("a",)), TARGET, uv=uv) == (wheel,)
        assert (
            ArtifactCache(tmp_path / "cache", indexes=indexes.all, mirrors={}).file(wheel).stat().st_size == wheel.size
        )
        # uv's own question and ours are the same.
        assert {*asked(keyring)} == {f"get {index.url} alice"}
    assert "s3cr3t" not in caplog.text


@pytest.mark.slow
def test_a_refusal_for_a_wrong_password_does_not_repeat_it(keyring):
    with PackageIndex() as index:
        index.add("a", "1")
        index.user = "alice:another"
        keyring["SERVICE"] = index.url
        indexes = read_python_indexes(keyring, {"default": index.url.replace("://", "://alice@")})

        with pytest.raises(IndexRefused) as caught:
            resolve_wheels(Wanted(requires=("a",)), TARGET, uv=Uv(runner=run, environment=keyring, indexes=indexes))
    assert "s3cr3t" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"
