"""Signatures in cosign's first form stand under a tag beside the image: a copy takes them along."""

import io
from functools import partial

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.registry.beside import copy_beside
from envbuilder.registry.signatures import sign, signature_tag, verify
from envbuilder.store.archive import ArchiveTarget, ArchiveWriter
from envbuilder.store.copy import copy
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound

ALICE, BOB = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()


def push(target, data, media_type):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


@pytest.fixture
def source():
    return MemoryTarget("source.test/a")


@pytest.fixture
def child(source):
    config = push(source, b"{}", media_types.OCI_CONFIG)
    return push(source, Manifest(config=config, layers=()).dump(), media_types.OCI_MANIFEST)


@pytest.fixture
def root(source, child):
    return push(source, Index(manifests=(child,)).dump(), media_types.OCI_INDEX)


def signed(target, subject, key):
    sign(target, subject, key, "source.test/a", "simple")


def is_signed(target, subject, key):
    return verify(target, subject, {"signer": key.public_key()})[0] == "signer"


def test_signatures_of_the_image_and_of_its_manifests_go_along(source, root, child):
    target = MemoryTarget("target.test/a")
    signed(source, root, ALICE)
    signed(source, child, BOB)
    copy(source, root, target)

    found, moved = copy_beside(source, root, target)

    assert len(found) == 2
    assert moved > 0
    assert is_signed(target, root, ALICE)
    assert is_signed(target, child, BOB)
    assert copy_beside(source, root, target)[1] == 0


def test_signatures_that_are_there_already_stay(source, root):
    target = MemoryTarget("target.test/a")
    signed(source, root, ALICE)
    copy(source, root, target)
    signed(target, root, BOB)

    copy_beside(source, root, target)

    assert is_signed(target, root, ALICE)
    assert is_signed(target, root, BOB)


def test_an_image_that_is_not_signed_leaves_no_tag(source, root):
    target = MemoryTarget("target.test/a")
    copy(source, root, target)

    assert copy_beside(source, root, target) == ((), 0)
    with pytest.raises(NotFound):
        target.lookup(signature_tag(root))


def test_an_archive_has_them_too(source, root, tmp_path):
    writer = ArchiveWriter(tmp_path / "image.tar")
    signed(source, root, ALICE)
    copy(source, root, writer, tag="v1", finish=False)

    copy_beside(source, root, writer)
    writer.finish(root)

    assert is_signed(ArchiveTarget(tmp_path / "image.tar"), root, ALICE)
