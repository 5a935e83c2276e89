"""Debian's Docker engine loads what we built, and we read what it saves."""

import io
import tarfile

import docker
import pytest

from envbuilder.custom.docker_archive import write_docker_archive
from envbuilder.custom.docker_engine import DockerEngine, EngineAway, EngineRefused
from envbuilder.errors import IntegrityError
from envbuilder.image.inspect import open_image
from envbuilder.layer.tree import file
from envbuilder.oci.platform import Platform
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound
from envbuilder.testing.engine import docker_engine
from envbuilder.testing.layers import layer_of, push_image

pytestmark = pytest.mark.slow
AMD64 = Platform.parse("linux/amd64")


@pytest.fixture(scope="session")
def host(require_tool, tmp_path_factory):
    require_tool("dockerd")
    with docker_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def engine(host):
    with DockerEngine(host) as engine:
        yield engine


@pytest.fixture
def theirs(host):
    client = docker.DockerClient(base_url=host)
    yield client
    client.close()


def image(*texts):
    """A target with an image of one zstd layer for each text, beside its EROFS form."""
    target = MemoryTarget()
    push_image(target, [layer_of([file(f"file{index}", text)]) for index, text in enumerate(texts)], tag="v1")
    return target, target.lookup("v1")


def files_in(theirs, name):
    container = theirs.api.create_container(name, "/none")["Id"]
    try:
        data = b"".join(theirs.api.export(container))
    finally:
        theirs.api.remove_container(container)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.name.startswith("file")}


def test_an_image_goes_into_the_engine_and_out_again(engine, theirs, tmp_path):
    source, root = image(b"base" * 1000, b"top")
    opened = open_image(source, root, AMD64)

    config = engine.load(source, opened, "there/and/back:1", spool=tmp_path)
    saved = engine.open("there/and/back:1", spool=tmp_path)
    store = LayoutTarget(tmp_path / "layout", create=True)
    copy(saved, saved.lookup(""), store, tag="v1")
    back = open_image(store, store.lookup("v1"), AMD64)

    assert theirs.images.get("there/and/back:1").id == str(config) == str(opened.manifest.config.digest)
    assert files_in(theirs, "there/and/back:1") == {"file0": b"base" * 1000, "file1": b"top"}
    assert back.config == opened.config
    assert back.manifest.config.digest == config
    assert [layer.digest for layer in back.manifest.layers] == list(opened.config.diff_ids)
    assert list(tmp_path.iterdir()) == [tmp_path / "layout"]


def test_layers_that_the_engine_has_are_not_sent_again(engine, theirs, tmp_path):
    base = bytes(range(256)) * 4000
    source, root = image(base, b"one")
    engine.load(source, open_image(source, root, AMD64), "shared/base:1", spool=tmp_path)
    source, root = image(base, b"two")
    opened = open_image(source, root, AMD64)
    present = engine._present(opened)

    engine.load(source, opened, "shared/base:2", spool=tmp_path)

    assert present == {opened.config.diff_ids[0]}
    assert sum(map(len, write_docker_archive(source, opened, "x:1", spool=tmp_path, present=present))) < len(base) / 10
    assert files_in(theirs, "shared/base:2") == {"file0": base, "file1": b"two"}


def test_an_image_that_docker_made_is_read(engine, theirs, tmp_path):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        member = tarfile.TarInfo("file0")
        member.size = 5
        out.addfile(member, io.BytesIO(b"hello"))
    made = theirs.api.import_image_from_data(tar.getvalue(), repository="made/here", tag="1")

    saved = engine.open("made/here:1", spool=tmp_path)
    store = MemoryTarget()
    copy(saved, saved.lookup("made/here:1"), store, tag="v1")

    assert "sha256:" in made
    assert str(open_image(store, store.lookup("v1"), AMD64).manifest.config.digest) in made


def test_a_damaged_layer_is_not_loaded(engine, theirs, tmp_path):
    source, root = image(b"good")
    opened = open_image(source, root, AMD64)
    layer = opened.manifest.layers[0]
    stored = source._content[layer.digest]
    source._content[layer.digest] = stored[:20] + bytes([stored[20] ^ 255]) + stored[21:]

    with pytest.raises(IntegrityError):
        engine.load(source, opened, "damaged:1", spool=tmp_path)
    assert theirs.images.list("damaged") == []


def test_an_image_that_is_not_there_is_said(engine, tmp_path):
    with pytest.raises(NotFound, match="no/such"):
        engine.open("no/such:1", spool=tmp_path)


def test_what_the_engine_cannot_load_is_said(engine, tmp_path, monkeypatch):
    source, root = image(b"x")
    opened = open_image(source, root, AMD64)
    monkeypatch.setattr("envbuilder.custom.docker_engine.write_docker_archive", lambda *_, **__: iter([b"no tar"]))

    with pytest.raises((EngineRefused, NotFound)):
        engine.load(source, opened, "refused:1", spool=tmp_path)


def test_an_engine_that_is_away_is_said_with_its_address(tmp_path):
    with pytest.raises(EngineAway, match="nobody") as caught:
        DockerEngine(f"unix://{tmp_path}/nobody")
    assert "DOCKER_HOST" in caught.value.hint


def test_the_command_pushes_into_the_engine_and_pulls_out_of_it(host, fresh, tmp_path):
    store = LayoutTarget(tmp_path / "layout", create=True)
    push_image(store, [layer_of([file("file0", b"cli")])], tag="v1")

    pushed = fresh.json("push", f"oci:{tmp_path}/layout:v1", "docker-daemon:cli/image:1", DOCKER_HOST=host)
    pulled = fresh.json("pull", "docker-daemon:cli/image:1", "--to", f"oci:{tmp_path}/back:v1", DOCKER_HOST=host)

    back = LayoutTarget(tmp_path / "back")
    assert str(open_image(back, back.lookup("v1"), AMD64).manifest.config.digest) == pushed["digest"]
    assert pulled["copied"] == 3
