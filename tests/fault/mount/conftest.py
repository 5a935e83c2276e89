"""A node for each test; whatever a test did, its node is clean at its end."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.testing.nodes import Node, make_node, push_test_image


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
