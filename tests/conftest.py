"""What all tests share: hypothesis profiles, how a missing tool is met, ``hello`` built once a session, nodes to mount on.

``hello`` is built by the command as a subprocess, with the machine's artefact cache.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from envbuilder.oci.media_types import REF_NAME
from envbuilder.testing.nodes import Node, make_node, push_test_image
from envbuilder.testing.servers import RunningRegistry, docker_registry

ROOT = Path(__file__).resolve().parents[1]
#: Where tools/install-go-tools puts what it builds.
GO_TOOLS = ROOT / ".cache/go-tools"

#: Starts ``run_image`` in a process of its own.
RUNNER = ROOT / "tests/e2e/mount/runner.py"
Start = Callable[..., "subprocess.Popen[bytes]"]


settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", deadline=None, max_examples=50, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def require_tool(name: str) -> str:
    """The path of a program; without it the test is skipped with its reason, or fails where it is required.

    ``ENVBUILDER_REQUIRE`` is ``all`` or a comma-separated list (``make test`` and CI say ``all``).
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:{GO_TOOLS}")
    return found or _missing(name)


def require_file(file: Path) -> Path:
    """``file``, which a package of this host brings; without it as ``require_tool``."""
    return file if file.exists() else _missing(file.name)


def _missing(name: str) -> NoReturn:
    required = os.environ.get("ENVBUILDER_REQUIRE", "").split(",")
    if "all" in required or name in required:
        pytest.fail(f"{name} is required here and not installed")
    pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="session", name="require_file")
def require_file_fixture() -> Callable[[Path], Path]:
    return require_file


@pytest.fixture(scope="session", name="require_tool")
def require_tool_fixture() -> Callable[[str], str]:
    return require_tool


@dataclass(frozen=True)
class Hello:
    """The image of ``hello`` as its store holds it: the documents by what they are."""

    store: Path
    digest: str  # of the index
    index: dict[str, Any]
    plain: dict[str, Any]  # the manifest that everyone reads, its digest, its config
    plain_digest: str
    plain_config: dict[str, Any]
    erofs: dict[str, Any]
    erofs_digest: str

    @property
    def reference(self) -> str:
        return f"oci:{self.store}:hello-1"

    def blob(self, digest: str) -> Path:
        return self.store / "blobs" / digest.replace(":", "/")

    @property
    def blobs(self) -> set[str]:
        """Digests of all that a full copy holds."""
        found = {self.digest, self.plain_digest, self.erofs_digest}
        for manifest in (self.plain, self.erofs):
            found |= {manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}
        return found


@dataclass(frozen=True)
class Cli:
    """``envbuilder`` in a project; variables of the host that would change it are cleared."""

    project: Path
    store: Path
    state: Path

    def environ(self, **extra: str) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("ENVBUILDER_")}
        return {
            **kept,
            "ENVBUILDER_STORE": str(self.store),
            "ENVBUILDER_STATE": str(self.state / "state"),
            "ENVBUILDER_CHUNKS": str(self.state / "chunks"),
            **extra,
        }

    def __call__(self, *words: str, status: int = 0, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "envbuilder", *words],
            cwd=self.project, env=self.environ(**extra), input=stdin, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, **extra: str) -> Any:
        return json.loads(self(*words, "--json", **extra).stdout)


def copy_project(folder: Path) -> Path:
    """A project of its own with our environments and locks."""
    for part in ("images", "lockfiles"):
        shutil.copytree(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="session")
def hello_cli(tmp_path_factory) -> Cli:
    """The command over a store in which ``hello`` was just built."""
    folder = tmp_path_factory.mktemp("hello")
    cli = Cli(copy_project(folder / "project"), folder / "store", folder / "state")
    cli("build", "hello")
    return cli


@pytest.fixture(scope="session")
def hello_store(hello_cli) -> Path:
    """A store in which ``hello`` is built."""
    return hello_cli.store


@pytest.fixture(scope="session")
def hello(hello_cli) -> Hello:
    """The built image, read without our own code."""

    def read(digest: str) -> dict[str, Any]:
        return json.loads((hello_cli.store / "blobs" / digest.replace(":", "/")).read_bytes())

    # The list of what is attached to the image has a tag too.
    listed = json.loads((hello_cli.store / "index.json").read_bytes())["manifests"]
    (tagged,) = (each for each in listed if not each["annotations"][REF_NAME].startswith("sha256-"))
    index = read(tagged["digest"])
    plain, erofs = (manifest["digest"] for manifest in index["manifests"])
    return Hello(
        store=hello_cli.store,
        digest=tagged["digest"],
        index=index,
        plain=read(plain),
        plain_digest=plain,
        plain_config=read(read(plain)["config"]["digest"]),
        erofs=read(erofs),
        erofs_digest=erofs,
    )


@pytest.fixture
def cli(tmp_path, hello_store) -> Cli:
    """The command in a fresh project, over the store in which ``hello`` is built."""
    return Cli(copy_project(tmp_path / "project"), hello_store, tmp_path / "state")


@pytest.fixture
def fresh(tmp_path) -> Cli:
    """The command in a fresh project with an empty store."""
    return Cli(copy_project(tmp_path / "project"), tmp_path / "store", tmp_path / "state")


@pytest.fixture(scope="session")
def registry(tmp_path_factory) -> Iterator[RunningRegistry]:
    """Debian's docker-registry over files."""
    with docker_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="session")
def layout(tmp_path_factory) -> Path:
    """A layout with a small image to mount."""
    folder = tmp_path_factory.mktemp("mount-image") / "layout"
    push_test_image(folder)
    return folder


@pytest.fixture
def node(layout, tmp_path) -> Iterator[Node]:
    """A node of its own; whatever a test did, it is clean at its end."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting needs root and /dev/fuse")
    made = make_node(layout, tmp_path)
    yield made
    assert made.leftovers() == []


@pytest.fixture
def start(layout, node, require_tool) -> Iterator[Start]:
    """Start ``run`` in a process of its own: ``start(*command, stdin=..., **options)``."""
    require_tool("runc")
    begun: list[subprocess.Popen[bytes]] = []

    def start_command(
        *command: str, stdin: int | None = subprocess.DEVNULL, **options: object
    ) -> "subprocess.Popen[bytes]":
        argv = [sys.executable, str(RUNNER), str(layout), str(node.folder), json.dumps(options), *command]
        name, _, text = node.mark.decode().partition("=")
        environ = {**os.environ, name: text}
        process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
        begun.append(process)
        return process

    yield start_command
    for process in begun:
        if process.poll() is None:
            process.kill()
        process.communicate()
