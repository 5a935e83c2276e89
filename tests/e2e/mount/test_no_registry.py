"""An image that is whole on a node starts there by its digest although its registry is gone for good."""

import os
import subprocess
import sys

import pytest

from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.servers import docker_registry

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounts are for root")]


@pytest.fixture
def run(node):
    """``envbuilder run`` on the same node: its exit status, stdout and stderr."""

    def call(reference, *options):
        environ = {
            **os.environ,
            "HOME": str(node.folder),
            "ENVBUILDER_STATE": str(node.settings.state_dir),
            "ENVBUILDER_CHUNKS": str(node.settings.cache_dir),
        }
        words = [sys.executable, "-m", "envbuilder", "run", *options, reference, "--", "cat", "/data/small"]
        done = subprocess.run(words, env=environ, cwd=node.folder, capture_output=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr.decode()

    return call


def test_a_pinned_image_that_is_here_starts_without_its_registry_and_a_tag_does_not(run, layout, node, require_tool):
    require_tool("docker-registry")
    with docker_registry(node.folder / "registry") as server:
        reference = RegistryReference(server.host, "some/image", tag="1")
        with RegistryClient() as client:
            source = LayoutTarget(layout)
            copy(source, source.lookup("test"), RegistryTarget(reference, client, writable=True), tag="1")
        pinned = str(reference.at(node.image.root.digest))
        first = run(pinned, "--full")
    again, tagged = run(pinned), run(str(reference))

    assert first[:2] == (0, b"small\n"), first
    assert again[:2] == (0, b"small\n"), again
    assert tagged[0] != 0
    assert server.host in tagged[2]
