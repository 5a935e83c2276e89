"""A node for each test; whatever a test did, its node is clean at its end."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envbuilder.testing.nodes import Node, make_node, push_test_image

RUNNER = Path(__file__).parents[2] / "e2e" / "mount" / "runner.py"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="session")
def layout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mount-image") / "layout"
    push_test_image(folder)
    return folder


@pytest.fixture
def node(layout, tmp_path) -> Iterator[Node]:
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

    def start_command(*command: str, stdin: int | None = subprocess.DEVNULL, **options: object) -> "subprocess.Popen[bytes]":
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
