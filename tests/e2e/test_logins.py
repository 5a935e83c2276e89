"""login, whoami and logout against a real registry: nothing wrong is kept, nothing secret is shown."""

import json
import shlex
import stat
import sys

import pytest

from envbuilder.testing import servers
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["htpasswd", "token"])
def guarded(request, tmp_path_factory, require_tool):
    require_tool("docker-registry")
    with docker_registry(tmp_path_factory.mktemp("guarded"), auth=request.param) as registry:
        yield registry


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path / "docker"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}


def test_a_login_is_checked_kept_used_and_forgotten(fresh, guarded, home, tmp_path):
    host, file = guarded.host, tmp_path / "docker/config.json"
    assert fresh("whoami", host, **home).stdout == f"{host}: anonymous\n"

    wrong = fresh("login", host, "-u", servers.USER, stdin="not-the-password", status=5, **home)
    assert "not-the-password" not in wrong.stderr
    assert not file.exists()

    fresh("login", host, "-u", servers.USER, "--dry-run", stdin=servers.PASSWORD, **home)
    assert not file.exists()

    done = fresh(
        "login", host, "-u", servers.USER, "--password-stdin", "--debug", stdin=servers.PASSWORD + "\n", **home
    )
    assert str(file) in done.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entry = json.loads(file.read_text())["auths"][host]["auth"]
    assert entry not in done.stderr

    who = fresh.json("whoami", host, "--check", **home)
    assert who == {
        "asked": True, "host": host, "kind": "password", "source": f"{file}: auths: {host}", "username": servers.USER,
    }  # fmt: skip

    assert "login removed" in fresh("logout", host, **home).stdout
    assert "anonymous" in fresh("whoami", host, **home).stdout


def test_a_program_gives_the_login_and_is_named(fresh, guarded, home, tmp_path):
    program = tmp_path / "give"
    answer = json.dumps({"username": servers.USER, "password": servers.PASSWORD, "expires_in": 60})
    program.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
    program.chmod(0o755)
    config = tmp_path / "xdg/envbuilder/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[registries."{guarded.host}"]\ncredential-helper = "{shlex.quote(str(program))}"\n')

    who = fresh.json("whoami", guarded.host, "--check", **home)

    assert (who["asked"], who["username"], who["source"]) == (True, servers.USER, f"program {program}")


def test_a_registry_that_asks_nobody_proves_nothing(fresh, registry, home, tmp_path):
    refused = fresh("login", registry.host, "-u", "alice", stdin="x", status=2, **home)
    assert "--no-verify" in refused.stderr

    podman = {**home, "ENVBUILDER_REGISTRIES_LOGIN_FILE": "containers", "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    fresh("login", registry.host, "-u", "alice", "--no-verify", stdin="x", **podman)
    assert registry.host in json.loads((tmp_path / "run/containers/auth.json").read_text())["auths"]
