"""Logins in files and helpers: what Docker and podman would find there, whole, private, and nothing else touched."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder.errors import SpecError
from envbuilder.proc import Completed
from envbuilder.registry.credentials import ConfigCredentials, Credential, InvalidCredentials
from envbuilder.registry.logins import NotStored, erase, login_file, place_for, store

ALICE = Credential(username="alice", password="s3cret")


class Helper:
    def __init__(self, status=0):
        self.calls, self.status = [], status

    def __call__(self, argv, *, env=None, cwd=None, stdin=b"", check=True, timeout_s=None):
        self.calls.append((list(argv), stdin))
        return Completed(self.status, b"", b"s3cret")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "docker" / "config.json"


def write(file, document):
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("credential", [ALICE, Credential(identity_token="tok")])
@pytest.mark.parametrize("host", ["r.io", "r.io:5000", "docker.io"])
def test_what_is_stored_is_found_and_gone_after_a_logout(file, credential, host):
    store(place_for(host, file), credential)
    assert ConfigCredentials([file]).find(host, "a/b") == credential
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    assert erase(place_for(host, file))
    assert ConfigCredentials([file]).find(host, "a/b") is None
    assert not erase(place_for(host, file))


def test_nothing_else_in_the_file_changes(file):
    write(file, {"auths": {"s.io": {"auth": "eDp5"}}, "HttpHeaders": {"X": "1"}, "credHelpers": {"t.io": "x"}})

    store(place_for("r.io", file), ALICE)
    erase(place_for("r.io", file))

    value = json.loads(file.read_text())
    assert value == {"auths": {"s.io": {"auth": "eDp5"}}, "HttpHeaders": {"X": "1"}, "credHelpers": {"t.io": "x"}}
    assert [item.name for item in file.parent.iterdir()] == ["config.json"]


def test_a_link_to_the_file_stays_one(file, tmp_path):
    file.parent.mkdir()
    file.symlink_to(tmp_path / "dotfiles.json")

    store(place_for("r.io", file), ALICE)

    assert file.is_symlink()
    assert ConfigCredentials([tmp_path / "dotfiles.json"]).find("r.io", "") == ALICE


def test_logins_at_the_same_time_are_all_kept(file):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store(place_for(f"r{number}.io", file), ALICE), range(16)))

    assert len(json.loads(file.read_text())["auths"]) == 16


@pytest.mark.parametrize("document", [{"credsStore": "desktop"}, {"credHelpers": {"r.io": "desktop"}}])
def test_a_configured_helper_keeps_the_login_instead_of_the_file(file, document):
    write(file, document)
    helper = Helper()

    store(place_for("r.io", file), ALICE, helper)
    erase(place_for("r.io", file), helper)

    [kept, gone] = helper.calls
    assert kept[0] == ["docker-credential-desktop", "store"]
    assert json.loads(kept[1]) == {"ServerURL": "r.io", "Username": "alice", "Secret": "s3cret"}
    assert gone == (["docker-credential-desktop", "erase"], b"r.io")
    assert json.loads(file.read_text()) == document


def test_a_helper_that_refuses_is_an_error_without_its_words(file):
    write(file, {"credsStore": "desktop"})

    with pytest.raises(NotStored, match="docker-credential-desktop store") as caught:
        store(place_for("r.io", file), ALICE, Helper(status=1))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"auths": []}', '{"auths": {}, "auths": {}}'])
def test_a_file_that_is_not_understood_is_left_alone(file, text):
    file.parent.mkdir()
    file.write_text(text)

    with pytest.raises(InvalidCredentials):
        store(place_for("r.io", file), ALICE)
    assert file.read_text() == text


def test_a_full_disk_leaves_the_old_file(file, monkeypatch):
    write(file, {"auths": {}})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    with pytest.raises(NotStored, match="No space left"):
        store(place_for("r.io", file), ALICE)
    assert json.loads(file.read_text()) == {"auths": {}}
    assert [item.name for item in file.parent.iterdir()] == ["config.json"]


def test_the_file_is_docker_s_or_podman_s_as_configured():
    home, environment = Path("/home/a"), {"XDG_RUNTIME_DIR": "/run/user/1", "DOCKER_CONFIG": "/d"}

    assert login_file({}, home, "auto") == home / ".docker/config.json"
    assert login_file(environment, home, "docker") == Path("/d/config.json")
    assert login_file(environment, home, "containers") == Path("/run/user/1/containers/auth.json")
    assert login_file({}, home, "containers") == home / ".config/containers/auth.json"
    assert login_file({"REGISTRY_AUTH_FILE": "/x.json"}, home, "auto") == Path("/x.json")
    assert login_file({}, home, "/y.json") == Path("/y.json")
    with pytest.raises(SpecError, match="login-file"):
        login_file({}, home, "podman")
