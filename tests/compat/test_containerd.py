"""Debian's containerd pulls the plain manifest of an image of ours and runs it; the EROFS one does not disturb it."""

import os

import pytest

from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.containerd import containerd
from envbuilder.testing.nodes import BIG

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="containerd needs root")]


def test_containerd_runs_the_plain_manifest_of_an_index_with_an_erofs_one(layout, registry, require_tool, tmp_path):
    require_tool("containerd")
    source = LayoutTarget(layout)
    reference = f"{registry.host}/containerd/small:1"
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference(registry.host, "containerd/small"), client, writable=True)
        copy(source, source.lookup("test"), target, tag="1")

    with containerd(tmp_path) as ctr:
        ctr("images", "pull", "--plain-http", reference)
        listed = ctr("images", "ls").stdout.decode()
        small = ctr("run", "--rm", reference, "one", "/usr/bin/cat", "/data/small").stdout
        big = ctr("run", "--rm", reference, "two", "/usr/bin/cat", "/data/big").stdout

    assert "linux/amd64" in listed
    assert small == b"small\n"
    assert big == BIG
