"""Ctrl-C in the middle of a push, as a user does it: the uploads that are open are cancelled, no tag is written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.registry import FakeRegistry

pytestmark = pytest.mark.slow


def layout_with(folder, blobs):
    layout = LayoutTarget(folder, create=True)

    def keep(data, media_type):
        what = describe(data, media_type)
        with layout.begin() as writer:
            writer.write(data)
            writer.commit(what)
        return what

    layers = tuple(keep(blob, media_types.OCI_LAYER_TAR) for blob in blobs)
    manifest = Manifest(config=keep(b"{}", media_types.OCI_CONFIG), layers=layers).dump()
    layout.tag(keep(manifest, media_types.OCI_MANIFEST), "1")


def test_ctrl_c_in_mid_push_cancels_every_upload(tmp_path):
    layout_with(tmp_path / "layout", [bytes([number]) * (1 << 20) for number in range(8)])
    with FakeRegistry() as registry:

        def slow(request, reply):
            time.sleep(0.5)
            return type(reply)(status=503)

        registry.fault("PUT", "/uploads/", slow, instead=True)
        argv = [sys.executable, "-m", "envbuilder", "copy", f"oci:{tmp_path / 'layout'}:1", f"{registry.host}/a/b:1"]
        environ = {**os.environ, "ENVBUILDER_CACHE": str(tmp_path / "cache")}
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while registry.uploads.open < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

        assert process.returncode == 130
        assert registry.uploads.open == 0
        assert registry.seen("DELETE")
        assert not registry.seen("PUT", "/manifests/")
