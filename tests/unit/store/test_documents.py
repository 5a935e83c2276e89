"""Documents that a node keeps: pinned images are found though their registry is away, and never a wrong byte."""

import io
import os
import pickle
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store import documents as documents_module
from envbuilder.store.documents import Documents
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.mirrored import MirroredTarget
from envbuilder.testing.sources import SwitchedSource

CONFIG = describe(b"{}", media_types.OCI_CONFIG)
LAYER = describe(b"layer" * 100, media_types.OCI_LAYER_TAR)
DOCUMENT = Manifest(config=CONFIG, layers=(LAYER,)).dump()
MANIFEST = describe(DOCUMENT, media_types.OCI_MANIFEST)


@pytest.fixture
def origin(tmp_path):
    layout = LayoutTarget(tmp_path / "origin", create=True)
    for what, data in ((CONFIG, b"{}"), (LAYER, b"layer" * 100), (MANIFEST, DOCUMENT)):
        layout.push(what, partial(io.BytesIO, data))
    layout.tag(MANIFEST, "1")
    return SwitchedSource(tmp_path / "origin", tmp_path / "switches")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "documents"


def read(source, what):
    with source.fetch(what) as stream:
        return stream.read()


def test_what_was_read_once_is_found_though_the_registry_is_away(origin, folder):
    first = MirroredTarget(origin, [], documents=Documents(folder))
    assert [read(first, what) for what in (MANIFEST, CONFIG)] == [DOCUMENT, b"{}"]
    origin.switch("away")
    later = pickle.loads(pickle.dumps(MirroredTarget(origin, [], documents=Documents(folder))))

    assert later.lookup(str(MANIFEST.digest)) == MANIFEST
    assert [read(later, what) for what in (MANIFEST, CONFIG)] == [DOCUMENT, b"{}"]


def test_a_tag_is_still_the_registrys_to_say(origin, folder):
    kept = MirroredTarget(origin, [], documents=Documents(folder))
    read(kept, MANIFEST)
    origin.switch("away")

    with pytest.raises(UnavailableError):
        kept.lookup("1")


def test_layers_are_not_kept(origin, folder):
    kept = MirroredTarget(origin, [], documents=Documents(folder))
    read(kept, LAYER)

    assert not folder.exists()


def test_a_document_that_was_altered_is_asked_for_again(origin, folder):
    kept = MirroredTarget(origin, [], documents=Documents(folder))
    read(kept, MANIFEST)
    (folder / MANIFEST.digest.hex).write_bytes(DOCUMENT.replace(b"2", b"3"))

    assert read(kept, MANIFEST) == DOCUMENT
    assert (folder / MANIFEST.digest.hex).read_bytes() == DOCUMENT


def test_a_folder_that_takes_nothing_costs_only_the_keeping(origin, tmp_path):
    (tmp_path / "file").write_bytes(b"")

    assert read(MirroredTarget(origin, [], documents=Documents(tmp_path / "file")), MANIFEST) == DOCUMENT


def test_a_config_is_no_image(folder):
    kept = Documents(folder)
    kept.keep(CONFIG, b"{}")

    assert kept.find(CONFIG.digest) == b"{}"
    assert kept.lookup(CONFIG.digest) is None


def test_with_too_many_those_used_longest_ago_go(folder, monkeypatch):
    monkeypatch.setattr(documents_module, "MOST", 8)
    kept = Documents(folder)
    made = [b"%d" % number for number in range(8)]
    for age, data in enumerate(made):
        kept.keep(describe(data, media_types.OCI_CONFIG), data)
        os.utime(folder / describe(data).digest.hex, (age, age))
    kept.find(describe(made[0]).digest)
    kept.keep(describe(b"new", media_types.OCI_CONFIG), b"new")

    assert [kept.find(describe(data).digest) is not None for data in made] == [True, False, False, *[True] * 5]
    assert kept.find(describe(b"new").digest) == b"new"
