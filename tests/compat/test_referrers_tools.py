"""oras and regctl find what we attach, and we find what they attach: both registries, and layouts."""

import io
import json
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.proc import run
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.referrers import attach, read_referrer, referrers
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow
_NOTE = "application/vnd.example.note"


@pytest.fixture(scope="module", params=["docker-registry", "registry"])
def host(request, tmp_path_factory, require_tool):
    program = require_tool(request.param)
    with docker_registry(tmp_path_factory.mktemp("referrers"), program=program) as running:
        yield running.host


@pytest.fixture
def repository(host, tmp_path):
    with RegistryClient() as client:
        name = "tools/" + tmp_path.name.lower().replace("_", "-").strip("-")
        yield RegistryTarget(RegistryReference(host, name), client, writable=True)


def image(target):
    config = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
    target.push(describe(config), partial(io.BytesIO, config))
    data = Manifest(config=describe(config, media_types.OCI_CONFIG), layers=()).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    return what


def note(target, subject, data=b"ours"):
    return attach(target, subject, _NOTE, [(describe(data), partial(io.BytesIO, data))], {"made.by": "us"})


def found_by_oras(oras, *words):
    return {
        (each["digest"], each["artifactType"]) for each in json.loads(run([oras, "discover", "--format=json", *words]).stdout)["referrers"]
    }  # fmt: skip


def test_oras_and_we_find_what_the_other_attached(repository, require_tool, tmp_path):
    oras, subject = require_tool("oras"), image(repository)
    ours = note(repository, subject)
    name = f"{repository.name}@{subject.digest}"
    assert found_by_oras(oras, "--plain-http", name) == {(str(ours.digest), _NOTE)}

    (tmp_path / "theirs.txt").write_text("theirs")
    run([oras, "attach", "--plain-http", "--artifact-type", "text/theirs", name, "theirs.txt:text/plain"], cwd=tmp_path)

    (theirs,) = referrers(repository, subject, "text/theirs")
    with repository.fetch(read_referrer(repository, theirs, subject).layers[0]) as stream:
        assert stream.read() == b"theirs"
    assert len(referrers(repository, subject)) == 2


def test_regctl_and_we_find_what_the_other_attached(repository, require_tool, tmp_path):
    regctl, subject = require_tool("regctl"), image(repository)
    ours = note(repository, subject)
    name = f"{repository.name}@{subject.digest}"
    options = ["--host", f"reg={repository.name.partition('/')[0]},tls=disabled"]
    (tmp_path / "theirs.txt").write_text("theirs")

    put = ["artifact", "put", "--artifact-type", "text/theirs", "--subject", name, "-f", "theirs.txt"]
    run([regctl, *options, *put], cwd=tmp_path)
    listed = json.loads(run([regctl, *options, "artifact", "list", name, "--format", "{{json .Descriptors}}"]).stdout)

    (theirs,) = referrers(repository, subject, "text/theirs")
    assert {each["digest"] for each in listed} == {str(ours.digest), str(theirs.digest)}
    assert read_referrer(repository, theirs, subject).artifact_type == "text/theirs"


def test_oras_and_we_find_what_the_other_attached_in_a_layout(require_tool, tmp_path):
    oras, layout = require_tool("oras"), LayoutTarget(tmp_path / "layout", create=True)
    subject = image(layout)
    layout.tag(subject, "v1")
    ours = note(layout, subject)
    name = f"{layout.directory}@{subject.digest}"
    assert (str(ours.digest), _NOTE) in found_by_oras(oras, "--oci-layout", name)

    (tmp_path / "theirs.txt").write_text("theirs")
    run([oras, "attach", "--oci-layout", "--artifact-type", "text/theirs", name, "theirs.txt:text/plain"], cwd=tmp_path)

    (theirs,) = referrers(layout, subject, "text/theirs")
    assert read_referrer(layout, theirs, subject).layers[0].size == len(b"theirs")
    assert len(referrers(layout, subject)) == 2
