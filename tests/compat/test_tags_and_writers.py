"""Tags deleted where a registry does, and many processes that attach at once: distribution 2.8 and 3, and a layout."""

import io
import json
import os
import subprocess
import sys
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.tags import CannotDelete
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow
WRITERS = 6


@pytest.fixture(params=["docker-registry", "registry"])
def repository(request, tmp_path, require_tool):
    program = require_tool(request.param)
    with docker_registry(tmp_path / "registry", program=program) as running, RegistryClient() as client:
        yield RegistryTarget(RegistryReference(running.host, "a/b"), client, writable=True)


def image(target, *tags):
    config = b"{}"
    target.push(describe(config), partial(io.BytesIO, config))
    data = Manifest(config=describe(config, media_types.OCI_CONFIG), layers=()).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    for tag in tags:
        target.tag(what, tag)
    return what


def test_a_tag_is_deleted_or_the_reason_is_given_and_its_image_stays(repository, request):
    what = image(repository, "1", "2")

    if request.node.callspec.params["repository"] == "registry":
        repository.delete_tag("1")
        assert repository.tag_names() == ("2",)
        with pytest.raises(NotFound):
            repository.delete_tag("1")
    else:
        with pytest.raises(CannotDelete) as refused:
            repository.delete_tag("1")
        assert "by its digest" in refused.value.hint
        assert repository.tag_names() == ("1", "2")
    assert repository.lookup("2") == what


def attach_at_once(reference, tmp_path):
    """Digests that so many processes of the command made, and those that it then finds."""
    (tmp_path / "note").write_text("x")
    environ = {**os.environ, "ENVBUILDER_CACHE": str(tmp_path / "cache"), "ENVBUILDER_STORE": str(tmp_path / "store")}
    argv = [sys.executable, "-m", "envbuilder"]
    options = {"cwd": tmp_path, "env": environ, "stdout": subprocess.PIPE, "text": True}
    writers = [
        subprocess.Popen(
            [*argv, "attach", reference, "note", "--type", "text/plain", "--annotation", f"writer={number}"], **options
        )
        for number in range(WRITERS)
    ]
    made = {writer.communicate(timeout=120)[0].strip() for writer in writers}
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    found = subprocess.run([*argv, "discover", reference, "--json"], check=True, timeout=60, **options)
    return made, {each["digest"] for each in json.loads(found.stdout)["referrers"]}


def test_processes_that_attach_to_a_repository_at_once_lose_nothing(repository, tmp_path):
    image(repository, "1")

    made, found = attach_at_once(f"{repository.name}:1", tmp_path)

    assert len(made) == WRITERS
    assert found == made


def test_processes_that_attach_to_a_layout_at_once_lose_nothing(tmp_path):
    image(LayoutTarget(tmp_path / "layout", create=True), "1")

    made, found = attach_at_once(f"oci:{tmp_path}/layout:1", tmp_path)

    assert len(made) == WRITERS
    assert found == made
