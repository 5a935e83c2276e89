import io
from dataclasses import replace
from functools import partial

import pytest
import zstandard

from envbuilder.digest import Descriptor, Digest, DigestMismatch, InvalidJson, describe
from envbuilder.image.choice import BrokenImage, NoSuchPlatform
from envbuilder.image.inspect import (
    MAX_CONFIG_SIZE,
    fetch_index,
    fetch_metadata,
    open_image,
)
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tree import file
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest, parse_document
from envbuilder.oci.platform import Platform
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.layers import layer_of, push_image

LAYERS = [layer_of([file("a", b"1" * 300_000)], name="x/base"), layer_of([file("b", b"2")], name="x/top")]
X86 = Platform("x86_64")


@pytest.fixture
def target():
    return MemoryTarget()


@pytest.fixture
def image(target):
    return push_image(target, LAYERS, tag="v1", env={"A": "1"})


def push(target, data, media_type):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def test_an_image_is_read_back_as_it_was_assembled(target, image):
    opened = open_image(target, target.lookup("v1"), X86)

    assert (opened.root.digest, opened.descriptor.digest) == (image.descriptor.digest, image.manifest.digest)
    assert [layer.digest for layer in opened.manifest.layers] == [built.layer.blob.digest for built in LAYERS]
    assert opened.config.env == {"A": "1"}
    assert opened.lazy.metadata == image.metadata
    assert [device.digest for device in opened.lazy.devices] == [built.layer.blob.digest for built in LAYERS]


def test_metadata_and_chunk_indexes_are_fetched_and_verified(target, image):
    lazy = open_image(target, image.descriptor, X86).lazy

    assert fetch_metadata(target, lazy) == erofs_metadata([built.layer for built in LAYERS])
    assert [fetch_index(target, device).size for device in lazy.devices] == [b.layer.tar_size for b in LAYERS]


@pytest.mark.parametrize("ask", ["index", "manifest"])
def test_another_platform_is_refused_with_what_is_there(target, image, ask):
    what = image.descriptor if ask == "index" else image.manifest

    with pytest.raises(NoSuchPlatform, match="want an image for linux/aarch64, got linux/"):
        open_image(target, what, Platform("aarch64"))


@pytest.mark.parametrize("over", [False, True])
def test_an_archive_of_artefacts_is_no_image_and_how_to_build_from_it_is_said(target, image, over):
    document = Manifest(config=describe(b"{}", media_types.OCI_EMPTY), layers=(), artifact_type=media_types.ARTIFACTS)
    what = push(target, document.dump(), media_types.OCI_MANIFEST)
    if over:
        base = replace(image.manifest, platform=None)
        index = Index(manifests=(what, base), artifact_type=media_types.ARTIFACTS)
        what = push(target, index.dump(), media_types.OCI_INDEX)

    with pytest.raises(NoSuchPlatform, match="want an image for linux/x86_64, got an archive of the artef") as caught:
        open_image(target, what, X86)

    assert "build ENV --from-archive" in caught.value.hint


def test_an_artefact_of_another_kind_is_no_image_and_its_type_is_said(target):
    document = Manifest(config=describe(b"{}", media_types.OCI_EMPTY), layers=(), artifact_type="text/x\n" + "y" * 999)

    with pytest.raises(NoSuchPlatform, match=r"got an artefact of type 'text/x\\ny{1,99}'$"):
        open_image(target, push(target, document.dump(), media_types.OCI_MANIFEST), X86)


def test_an_index_inside_an_index_is_refused(target, image):
    inner = replace(image.descriptor, platform=X86.to_json())
    outer = push(target, Index(manifests=(inner,)).dump(), media_types.OCI_INDEX)

    with pytest.raises(BrokenImage, match="index inside an index"):
        open_image(target, outer, X86)


def test_an_altered_document_is_refused(target, image):
    altered = replace(image.descriptor, digest=Digest.of(b"other"))
    target._content[altered.digest] = target._content[image.descriptor.digest]

    with pytest.raises(DigestMismatch):
        open_image(target, altered, X86)


def test_documents_over_their_cap_are_not_fetched(target, image):
    with pytest.raises(BrokenImage, match="want at most"):
        open_image(target, replace(image.descriptor, size=1 << 40), X86)
    manifest = parse_document(image.blobs[image.manifest], source="test")
    huge = replace(manifest, config=replace(manifest.config, size=MAX_CONFIG_SIZE + 1))
    with pytest.raises(BrokenImage, match="want at most"):
        open_image(target, push(target, huge.dump(), media_types.OCI_MANIFEST), X86)


def test_layers_without_a_diff_id_are_refused(target, image):
    manifest = parse_document(image.blobs[image.manifest], source="test")
    fewer = push(target, replace(manifest, layers=manifest.layers[:1]).dump(), media_types.OCI_MANIFEST)

    with pytest.raises(BrokenImage, match="1 layers, but 2 diff_ids"):
        open_image(target, fewer, X86)


def with_erofs(target, image, change):
    """The image with another EROFS manifest."""
    index = parse_document(image.blobs[image.descriptor], source="test")
    changed = push(
        target,
        change(parse_document(image.blobs[image.erofs_manifest], source="test")).dump(),
        media_types.OCI_MANIFEST,
    )
    child = replace(changed, platform=index.manifests[1].platform)
    return push(target, replace(index, manifests=(index.manifests[0], child)).dump(), media_types.OCI_INDEX)


def test_an_erofs_manifest_over_other_layers_is_refused(target, image):
    what = with_erofs(target, image, lambda m: replace(m, layers=(m.layers[1], m.layers[0], m.layers[2])))

    with pytest.raises(BrokenImage, match="not the layers of the plain manifest"):
        open_image(target, what, X86)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, layers=()),
        lambda m: replace(m, layers=m.layers[:2]),
        lambda m: replace(m, layers=tuple(replace(layer, annotations={}) for layer in m.layers)),
    ],
    ids=["no layers", "no metadata", "no roles"],
)
def test_an_erofs_manifest_of_another_shape_is_no_lazy_start(target, image, change):
    assert open_image(target, with_erofs(target, image, change), X86).lazy is None


@pytest.mark.parametrize(
    "stored",
    [
        b"no zstd",
        zstandard.compress(b"other"),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"x"),
        bytes.fromhex("28b52ffde0ffffffffffff0000"),
    ],
    ids=["garbage", "other bytes", "no size", "claims 2^48 bytes"],
)
def test_bad_metadata_are_refused(target, image, stored):
    lazy = open_image(target, image.descriptor, X86).lazy
    bad = push(target, stored, media_types.EROFS_LAYER_ZSTD)

    with pytest.raises(BrokenImage, match="EROFS metadata"):
        fetch_metadata(target, replace(lazy, metadata=bad))


def test_a_blob_without_a_chunk_index_says_so(target):
    with pytest.raises(BrokenImage, match="no chunk index"):
        fetch_index(target, Descriptor(media_type="x", digest=Digest.of(b""), size=0))


def test_what_is_no_image_is_refused(target):
    with pytest.raises(InvalidJson):
        open_image(target, push(target, b"[]", media_types.OCI_INDEX), X86)
    with pytest.raises(InvalidJson):
        open_image(
            target, push(target, Manifest(config=describe(b""), layers=()).dump()[:-1], media_types.OCI_MANIFEST), X86
        )


def test_plain_metadata_under_another_name_are_refused(target, image):
    lazy = open_image(target, image.descriptor, X86).lazy
    plain = push(target, fetch_metadata(target, lazy), media_types.EROFS_LAYER)
    other = push(target, b"of another image", media_types.EROFS_LAYER)

    assert fetch_metadata(target, replace(lazy, metadata=plain)) == erofs_metadata([built.layer for built in LAYERS])
    with pytest.raises(BrokenImage, match="EROFS metadata: want"):
        fetch_metadata(target, replace(lazy, metadata=other))


def test_a_plain_manifest_that_is_pinned_alone_leads_to_its_erofs_manifest(target, image):
    pinned = open_image(target, image.manifest, X86)

    assert pinned.root.digest == image.manifest.digest
    assert replace(pinned.lazy, descriptor=image.erofs_manifest) == open_image(target, image.descriptor, X86).lazy
    assert pinned.lazy.descriptor.digest == image.erofs_manifest.digest


def test_a_plain_manifest_whose_erofs_manifest_is_elsewhere_is_read_without(target, image):
    elsewhere = MemoryTarget()
    data = {**image.blobs, **{built.layer.blob: built.blob for built in LAYERS}}
    for what, content in data.items():
        if what.digest != image.erofs_manifest.digest:
            elsewhere.push(what, partial(io.BytesIO, content))

    assert open_image(elsewhere, image.manifest, X86).lazy is None


@pytest.mark.parametrize(
    "note", ["", "x", "sha256:x 3", f"{Digest.of(b'x')} y", f"{Digest.of(b'x')} -3", f"{Digest.of(b'x')}"]
)
def test_a_note_of_an_erofs_manifest_that_is_none_counts_for_nothing(target, image, note):
    manifest = parse_document(image.blobs[image.manifest], source="test")
    pinned = push(
        target, replace(manifest, annotations={media_types.EROFS_MANIFEST: note}).dump(), media_types.OCI_MANIFEST
    )

    assert open_image(target, pinned, X86).lazy is None


def test_what_others_laid_over_an_image_does_not_start_as_that_image(target, image):
    # Builders copy the annotations of the manifest that they begin with.
    manifest = parse_document(image.blobs[image.manifest], source="test")
    config = image.blobs[manifest.config].replace(
        b'"diff_ids":[', b'"diff_ids":["' + str(Digest.of(b"x")).encode() + b'",'
    )
    more = layer_of([file("c", b"3")]).layer.blob
    over = replace(manifest, layers=(*manifest.layers, more), config=push(target, config, media_types.OCI_CONFIG))
    pinned = push(target, over.dump(), media_types.OCI_MANIFEST)

    assert open_image(target, pinned, X86).lazy is None
