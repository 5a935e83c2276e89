import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envbuilder.proc import Completed, ProgramMissing
from envbuilder.registry.credentials import (
    ConfigCredentials,
    Credential,
    InvalidCredentials,
    credential_files,
    parse_docker_config,
)


def entry(name="alice", password="s3cret"):
    return {"auth": base64.b64encode(f"{name}:{password}".encode()).decode()}


def source(tmp_path, config, **options):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return ConfigCredentials([tmp_path / "absent.json", tmp_path / "config.json"], **options)


class Helper:
    def __init__(self, answer=None, status=0, error=None):
        self.calls, self.answer, self.status, self.error = [], answer or {}, status, error

    def __call__(self, argv, *, env=None, cwd=None, stdin=b"", check=True, timeout_s=None):
        self.calls.append((argv, stdin))
        if self.error:
            raise self.error
        return Completed(self.status, json.dumps(self.answer).encode(), b"")


ALICE = Credential(username="alice", password="s3cret")


@pytest.mark.parametrize("key", ["r.io", "https://r.io", "https://r.io/v1/", "https://r.io/v2/", "http://r.io"])
def test_an_entry_is_found_under_every_spelling_of_its_host(tmp_path, key):
    assert source(tmp_path, {"auths": {key: entry()}}).find("r.io", "a/b") == ALICE


def test_the_entry_of_a_repository_goes_before_that_of_its_host(tmp_path):
    found = source(tmp_path, {"auths": {"r.io": entry("host"), "r.io/a": entry("a"), "r.io/a/b": entry("ab")}})

    assert [found.find("r.io", name).username for name in ("a/b", "a/c", "x")] == ["ab", "a", "host"]


def test_the_entry_of_docker_hub_is_found(tmp_path):
    found = source(tmp_path, {"auths": {"https://index.docker.io/v1/": entry()}})

    assert found.find("docker.io", "library/debian") == ALICE
    assert found.find("other.io", "") is None


def test_an_identity_token_is_told_from_a_password(tmp_path):
    config = {"auths": {"r.io": {**entry(), "identitytoken": "tok"}, "s.io": entry("<token>", "tok2")}}

    assert source(tmp_path, config).find("r.io", "") == Credential(identity_token="tok")
    assert source(tmp_path, config).find("s.io", "") == Credential(identity_token="tok2")


def test_a_helper_of_a_host_goes_before_its_entry_and_is_asked_once(tmp_path):
    helper = Helper({"ServerURL": "r.io", "Username": "bob", "Secret": "x"})
    found = source(tmp_path, {"auths": {"r.io": entry()}, "credHelpers": {"r.io": "ecr-login"}}, runner=helper)

    assert found.find("r.io", "") == found.find("r.io", "") == Credential(username="bob", password="x")
    assert helper.calls == [(["docker-credential-ecr-login", "get"], b"r.io")]


def test_a_helper_is_asked_again_after_a_refusal_but_not_in_a_loop(tmp_path):
    helper, now = Helper({"Username": "bob", "Secret": "x"}), [0.0]
    found = source(tmp_path, {"credsStore": "desktop"}, runner=helper, clock=lambda: now[0])

    found.find("r.io", "")
    found.refused("r.io")
    found.find("r.io", "")
    assert len(helper.calls) == 1
    now[0] = 6
    found.find("r.io", "")
    assert len(helper.calls) == 2
    now[0] = 100
    found.find("r.io", "")
    assert len(helper.calls) == 2


def test_a_slow_helper_holds_up_its_own_host_only_and_is_asked_once(tmp_path):
    begun, go_on, answer = threading.Event(), threading.Event(), {"Username": "alice", "Secret": "s3cret"}

    class Slow(Helper):
        def __call__(self, argv, *, stdin=b"", **options):
            if stdin == b"slow.io":
                begun.set()
                assert go_on.wait(10)
            return super().__call__(argv, stdin=stdin)

    helper = Slow(answer)
    credentials = source(tmp_path, {"credsStore": "pass", "auths": {"file.io": entry()}}, runner=helper)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(credentials.find, "slow.io", "") for _ in range(3)]
        assert begun.wait(10)
        others = [pool.submit(credentials.find, host, "").result(10) for host in ("file.io", "quick.io")]
        credentials.refused("quick.io")
        go_on.set()

    assert others == [ALICE, ALICE]
    assert [each.result() for each in waiting] == [ALICE] * 3
    assert [stdin for _, stdin in helper.calls] == [b"quick.io", b"slow.io"]


def test_the_store_is_asked_for_hosts_without_an_entry_of_their_own(tmp_path):
    helper = Helper({"Username": "<token>", "Secret": "x"})
    found = source(tmp_path, {"auths": {"r.io": entry(), "s.io": {}}, "credsStore": "desktop"}, runner=helper)

    assert found.find("r.io", "") == ALICE
    assert found.find("s.io", "") == Credential(identity_token="x")


@pytest.mark.parametrize(
    "helper",
    [
        Helper(status=1),
        Helper(error=ProgramMissing("no such")),
        Helper({"x": 1}),
        Helper({"Username": "", "Secret": ""}),
        Helper({"Username": None, "Secret": None}),
        Helper({"Username": "a", "Secret": ["b"]}),
        Helper({"Username": "a", "Secret": "\ud800"}),
        Helper({"Username": "a", "Secret": "x" * (1 << 20)}),
    ],
)
def test_a_helper_that_fails_means_no_credentials(tmp_path, helper):
    assert source(tmp_path, {"credsStore": "desktop"}, runner=helper).find("r.io", "") is None


def test_a_host_without_a_helper_of_its_own_may_be_kept_from_the_store(tmp_path):
    helper = Helper({"Username": "bob", "Secret": "x"})
    config = {"auths": {"r.io": entry()}, "credHelpers": {"r.io": "", "s.io": ""}, "credsStore": "desktop"}
    found = source(tmp_path, config, runner=helper)

    assert found.find("r.io", "") == ALICE
    assert found.find("s.io", "") is None
    assert found.find("t.io", "") == Credential(username="bob", password="x")


@pytest.mark.parametrize("name", ["../../evil", "a b", "x;rm", "a/b", "$(id)"])
def test_a_helper_whose_name_is_no_name_is_refused(name):
    with pytest.raises(InvalidCredentials, match="helper"):
        parse_docker_config(json.dumps({"credHelpers": {"r.io": name}}).encode(), source="config.json")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"auths": [1]}', '{"auths": {}, "auths": {}}', '{"credsStore": 5}'])
def test_a_malformed_file_is_refused_by_name(text):
    with pytest.raises(InvalidCredentials, match=r"config\.json"):
        parse_docker_config(text.encode(), source="config.json")


def test_a_broken_entry_is_refused_without_showing_it(tmp_path):
    with pytest.raises(InvalidCredentials) as caught:
        source(tmp_path, {"auths": {"r.io": {"auth": "s3cret!!"}}}).find("r.io", "")
    assert "s3cret" not in str(caught.value)


def test_no_repr_shows_a_secret(tmp_path):
    config = parse_docker_config(json.dumps({"auths": {"r.io": entry()}}).encode(), source="x")

    assert "s3cret" not in repr(ALICE)
    assert entry()["auth"] not in repr(config)
    assert "tok" not in repr(Credential(identity_token="tok"))


def test_files_are_looked_for_where_docker_and_podman_keep_them():
    environment = {"REGISTRY_AUTH_FILE": "/x.json", "DOCKER_CONFIG": "/d", "XDG_RUNTIME_DIR": "/run/user/1"}

    assert credential_files(environment, Path("/home/a")) == (
        Path("/x.json"),
        Path("/d/config.json"),
        Path("/run/user/1/containers/auth.json"),
        Path("/home/a/.config/containers/auth.json"),
    )
    assert credential_files({}, Path("/home/a"))[0] == Path("/home/a/.docker/config.json")


def test_the_text_of_a_ci_variable_goes_before_all_files(tmp_path):
    inline = json.dumps({"auths": {"r.io": entry("ci", "x")}})

    assert source(tmp_path, {"auths": {"r.io": entry()}}, inline=inline).find("r.io", "").username == "ci"
