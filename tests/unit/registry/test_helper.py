"""Our own protocol for programs that give credentials: what they are asked, how long an answer lasts, what is refused."""

import json
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from envbuilder.proc import Completed, ProgramMissing
from envbuilder.registry.credentials import ConfigCredentials, Credential
from envbuilder.registry.helper import HelperCredentials, parse_answer

BOB = Credential(username="bob", password="s3cret")


class Program:
    def __init__(self, answer=None, status=0, error=None):
        self.asked, self.status, self.error = [], status, error
        self.answer = {"username": "bob", "password": "s3cret", "expires_in": 100} if answer is None else answer

    def __call__(self, argv, *, env=None, cwd=None, stdin=b"", check=True, timeout_s=None):
        assert timeout_s
        self.asked.append((list(argv), json.loads(stdin)))
        if self.error:
            raise self.error
        return Completed(self.status, json.dumps(self.answer).encode(), b"s3cret")


def source(program, now=None):
    now = now or [0.0]
    return HelperCredentials(
        {"r.io": ("give", "--fast"), "s.io:5000": ("other",)}, runner=program, clock=lambda: now[0]
    )


def test_a_program_is_told_who_asks_for_what():
    program = Program()

    assert source(program).find("r.io", "a/b", ("pull", "push")) == BOB
    request = {"version": 1, "host": "r.io", "repository": "a/b", "actions": ["pull", "push"]}
    assert program.asked == [(["give", "--fast"], request)]


def test_an_answer_is_kept_until_it_expires_and_for_each_right_apart():
    program, now = Program(), [0.0]
    found = source(program, now)

    found.find("r.io", "a", ("pull",))
    now[0] = 79
    found.find("r.io", "a", ("pull",))
    assert len(program.asked) == 1
    now[0] = 81
    found.find("r.io", "a", ("pull",))
    found.find("r.io", "b", ("pull",))
    assert len(program.asked) == 3


def test_it_is_asked_again_after_a_refusal_but_not_in_a_loop():
    program, now = Program(), [0.0]
    found = source(program, now)

    found.find("r.io", "a")
    found.refused("r.io")
    found.find("r.io", "a")
    assert len(program.asked) == 1
    now[0] = 6
    found.find("r.io", "a")
    assert len(program.asked) == 2
    now[0] = 20
    found.find("r.io", "a")
    assert len(program.asked) == 2


def test_many_threads_ask_once():
    program, start = Program(), threading.Barrier(8)
    found = source(program)

    def ask(_):
        start.wait(5)
        return found.find("r.io", "a")

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [BOB] * 8
    assert len(program.asked) == 1


def test_other_hosts_are_looked_for_elsewhere(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"t.io": {"username": "al", "password": "x"}}}))
    found = HelperCredentials({"r.io": ("give",)}, ConfigCredentials([tmp_path / "config.json"]), runner=Program())

    assert found.find("t.io", "a").username == "al"
    assert found.find("u.io", "a") is None
    assert pickle.loads(pickle.dumps(found)).find("t.io", "a").username == "al"


@pytest.mark.parametrize(
    "program", [Program(status=1), Program(error=ProgramMissing("no such")), Program(answer={"token": 5})]
)
def test_a_program_that_fails_means_no_credentials_and_shows_no_secret(program, caplog):
    found = source(program)

    assert found.find("r.io", "a") is None
    assert found.find("r.io", "a") is None
    assert len(program.asked) == 1
    assert "going on without it" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "credential"),
    [
        ({"username": "bob", "password": "s3cret"}, BOB),
        ({"token": "abc", "expires_in": 5}, Credential(registry_token="abc")),
        ({}, None),
    ],
)
def test_an_answer_is_a_password_a_token_or_nothing(answer, credential):
    assert parse_answer(json.dumps(answer).encode())[0] == credential


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "nonsense", '{"token": "a", "token": "b"}', '{"token": "a b"}', '{"token": "a\\r\\nX: 1"}', '{"username": "bob"}',
        '{"username": "bob", "password": "x", "token": "y"}', '{"token": "a", "expires_in": -1}',
        '{"token": "a", "expires_in": true}', '{"token": "a", "expires_in": "60"}', '{"token": "' + "a" * (1 << 20) + '"}',
    ],
)  # fmt: skip
def test_any_other_answer_is_none(text):
    assert parse_answer(text.encode()) is None


def test_a_real_program_is_asked_on_its_stdin(tmp_path):
    program = tmp_path / "give"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nasked = json.load(sys.stdin)\n"
        "print(json.dumps({'username': asked['host'], 'password': asked['repository']}))\n"
    )
    program.chmod(0o755)

    found = HelperCredentials({"r.io": (str(program),)}).find("r.io", "a/b", ("pull",))

    assert found == Credential(username="r.io", password="a/b")
