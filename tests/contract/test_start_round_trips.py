"""How many round trips of a start depend on each other: what waits for what, not how long."""

import os
from itertools import chain
from pathlib import Path

import pytest

from envbuilder.cli.app import App
from envbuilder.cli.output import Output
from envbuilder.cli.registries import registry_client
from envbuilder.cli.settings import load_settings
from envbuilder.cli.targets import open_source
from envbuilder.image.inspect import open_image
from envbuilder.mount.prepare import MetadataRead
from envbuilder.mount.startup.hotbuild import build_bundle
from envbuilder.mount.startup.trace import Pages
from envbuilder.mount.startup.traces import FoundTrace, TraceSearch, attach_trace
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.copy import copy
from envbuilder.store.documents import Documents
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.nodes import push_test_image
from envbuilder.testing.rounds import Rounds, in_rounds
from envbuilder.testing.servers import docker_registry
from envbuilder.testing.traces import trace_of

pytestmark = pytest.mark.slow

_PLATFORM = Platform("x86_64")
_NAME = "env/traced"


@pytest.fixture(scope="module")
def traced(tmp_path_factory, require_tool):
    """A registry with an image that has a trace with a bundle: its host, and the image's digest."""
    require_tool("docker-registry")
    folder = tmp_path_factory.mktemp("traced")
    push_test_image(folder / "layout")
    layout = LayoutTarget(folder / "layout")
    what = layout.lookup("test")
    image = open_image(layout, what, _PLATFORM)
    trace = trace_of(image, [Pages(0, 0, 40), Pages(1, 3, 20)])
    trace = build_bundle(trace, image.manifest.layers, layout, folder / "bundle", jobs=1)
    with docker_registry(folder / "registry") as running, RegistryClient() as client:
        target = RegistryTarget(RegistryReference(running.host, _NAME), client, writable=True)
        copy(layout, what, target, tag="1")
        attach_trace(target, image, trace, folder / "bundle")
        yield running.host, what.digest


def looked_up(rounds: Rounds, name: str, node: Path) -> tuple[FoundTrace | None, bytes]:
    """As ``envbuilder run`` looks an image up: its trace, and what comes of its bundle meanwhile."""
    environ = {"ENVBUILDER_CACHE": str(node / "cache"), "ENVBUILDER_CHUNKS": str(node / "chunks")}
    settings = load_settings(project=None, environ=environ, flags={}, uid=os.geteuid())
    app = App(settings, Output(as_json=False, quiet=True, debug=False), None)
    with registry_client(app):
        return _looked_up(app, f"{rounds.host}/{_NAME}{name}")


def _looked_up(app: App, reference: str) -> tuple[FoundTrace | None, bytes]:
    source = open_source(app, reference, starting=True)
    cache = app.mount_settings().cache_dir
    search = TraceSearch(source.target, Documents(cache / "documents"))
    metadata = MetadataRead(source.target, cache)
    image = open_image(source.target, source.what, _PLATFORM, chosen=search.begin, found=metadata.begin)
    assert image.lazy is not None
    metadata.file(image.lazy)
    found = search.result(image)
    early = search.early()
    bundle = b""
    if early >= 0:
        with os.fdopen(early, "rb") as pipe:
            bundle = pipe.read()
    return found, bundle


def test_a_first_start_has_all_that_it_waits_for_after_four_round_trips(traced, tmp_path):
    host, digest = traced
    with in_rounds(host) as rounds:
        found, bundle = looked_up(rounds, f"@{digest}", tmp_path)

    # Connections; the index; both manifests and where the trace is; metadata, config, trace and bundle.
    assert len(rounds.rounds) == 4
    assert rounds.round_of(f"/manifests/{digest}") == 2
    assert rounds.round_of("/referrers/") == rounds.round_of("/manifests/sha256-") == 3
    assert rounds.round_of(str(found.hot.digest)) == 4
    assert len(bundle) == found.hot.size
    assert set(rounds.rounds[0]) == {"connect"}


def test_a_tag_costs_no_round_trip_more_than_a_digest(traced, tmp_path):
    with in_rounds(traced[0]) as rounds:
        looked_up(rounds, ":1", tmp_path)

    assert len(rounds.rounds) == 4


def test_a_node_that_has_the_trace_does_not_ask_for_its_bundle_again(traced, tmp_path):
    host, digest = traced
    with in_rounds(host) as rounds:
        looked_up(rounds, f"@{digest}", tmp_path)
    with in_rounds(host) as rounds:
        found, bundle = looked_up(rounds, f"@{digest}", tmp_path)

    assert bundle == b""
    assert rounds.round_of(str(found.hot.digest)) == 0
    # Documents and metadata are here: what is left is to ask where the newest trace is.
    assert {name.partition("sha256")[0] for name in chain(*rounds.rounds)} <= {
        "connect",
        f"GET /v2/{_NAME}/referrers/",
        f"GET /v2/{_NAME}/manifests/",
    }
