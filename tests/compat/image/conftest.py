"""``hello`` in registries of other people, and their programs, each in a home of its own."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuilder.proc import Completed, run
from envbuilder.testing.servers import RunningRegistry, docker_registry

Program = Callable[..., Completed]
#: Seconds: the largest of these commands moves some hundred MB on a busy machine.
TIMEOUT_S = 300.0
#: podman asks for a million open files, and runc refuses what is over the host's own limit: what any host has.
LIMITS = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]


@pytest.fixture(scope="session", params=["docker-registry", "registry"], ids=["debian", "distribution3"])
def shelf(request, tmp_path_factory, require_tool, hello_cli, hello) -> Iterator[RunningRegistry]:
    """Debian's docker-registry, then distribution 3, each with ``hello`` at ``env/hello:1``."""
    program = require_tool(request.param)
    with docker_registry(tmp_path_factory.mktemp("shelf"), program=program) as running:
        hello_cli("push", hello.reference, f"{running.host}/env/hello:1")
        yield running
    shutil.rmtree(running.directory)


@pytest.fixture(scope="module")
def tool(require_tool, tmp_path_factory) -> Callable[..., Program]:
    """A program by name, that knows nothing of this host's credentials and configuration."""
    home = tmp_path_factory.mktemp("home")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8"}

    def find(name: str, *always: str | Path) -> Program:
        program = require_tool(name)

        def call(*words: str | Path, check: bool = True, stdin: bytes = b"") -> Completed:
            argv = [program, *always, *words]
            return run(argv, env=environ, cwd=home, stdin=stdin, check=check, timeout_s=TIMEOUT_S)

        return call

    return find


@pytest.fixture(scope="module")
def skopeo(tool) -> Program:
    """``skopeo VERB``; registries here speak plain HTTP, and nothing is signed."""
    call = tool("skopeo", "--insecure-policy")

    def skopeo(verb: str, *words: str | Path) -> Completed:
        plain = ["--src-tls-verify=false", "--dest-tls-verify=false"] if verb == "copy" else ["--tls-verify=false"]
        return call(verb, *plain, *words)

    return skopeo


@pytest.fixture(scope="module")
def crane(tool) -> Program:
    return tool("crane")


@pytest.fixture(scope="module")
def podman(tool, require_tool, tmp_path_factory) -> Iterator[Program]:
    """podman over a store of its own, with runc: crun 1.8 refuses hosts with hybrid cgroups.

    Each call has a mount namespace of its own: what it mounts (its store over itself, too) ends with its processes.
    """
    require_tool("conmon")
    root = tmp_path_factory.mktemp("containers")
    short = Path(tempfile.mkdtemp(prefix="podman-"))  # podman refuses a runroot of more than 50 characters
    words = ["--root", root, "--runroot", short, "--storage-driver", "overlay", "--runtime", require_tool("runc")]
    words += ["--cgroup-manager", "cgroupfs", "--events-backend", "none"]
    call = tool("unshare", "--mount", "--propagation=private", require_tool("podman"), *words)

    def podman(verb: str, *words: str | Path, **options) -> Completed:
        return call(verb, *(LIMITS if verb == "run" else []), *words, **options)

    yield podman
    podman("rm", "--all", "--force")  # conmon may still be clearing away behind the last run: this waits for it
    shutil.rmtree(root)
    shutil.rmtree(short)
