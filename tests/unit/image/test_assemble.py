from envbuilder.digest import Digest
from envbuilder.image.assemble import assemble
from envbuilder.layer.tree import file
from envbuilder.oci import media_types
from envbuilder.oci.config import parse_config
from envbuilder.oci.manifest import parse_document
from envbuilder.oci.platform import Platform
from envbuilder.testing.layers import layer_of

LAYERS = [layer_of([file("a", b"1")], name="x/base").layer, layer_of([file("b", b"2")], name="x/top").layer]
X86 = Platform("x86_64")


def image(**options):
    return assemble(platform=X86, layers=LAYERS, **options)


def documents(built):
    index = parse_document(built.blobs[built.descriptor], source="index")
    plain, erofs = (parse_document(built.blobs[child], source="manifest") for child in index.manifests)
    return index, plain, erofs


def test_the_plain_manifest_stands_first_and_the_other_asks_for_a_feature():
    index, _, _ = documents(image())

    assert [child.platform for child in index.manifests] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "amd64", "os": "linux", "os.features": ["erofs"]},
    ]


def test_both_manifests_name_the_same_blobs_and_the_metadata_come_last():
    built = image()
    _, plain, erofs = documents(built)

    assert [layer.digest for layer in plain.layers] == [layer.blob.digest for layer in LAYERS]
    assert [layer.digest for layer in erofs.layers[:-1]] == [layer.digest for layer in plain.layers]
    assert {layer.annotations[media_types.EROFS_ROLE] for layer in erofs.layers[:-1]} == {"device"}
    assert erofs.layers[-1] == built.metadata
    assert built.metadata.media_type == "application/vnd.erofs+zstd"
    assert media_types.EROFS_ROLE not in built.metadata.annotations


def test_configs_have_a_diff_id_and_a_line_of_history_for_each_layer():
    built = image(env={"B": "2", "A": "1"}, command=("python3",), working_dir="/w", user="1000", labels={"l": "m"})
    _, plain, erofs = documents(built)
    blobs = {what.digest: data for what, data in built.blobs.items()}
    one, two = (parse_config(blobs[m.config.digest], source="config") for m in (plain, erofs))

    assert one.diff_ids == tuple(layer.diff_id for layer in LAYERS)
    assert two.diff_ids[:-1] == one.diff_ids
    assert str(two.diff_ids[-1]) == built.metadata.annotations[media_types.EROFS_UNCOMPRESSED_DIGEST]
    assert (len(one.history), len(two.history), one.os_features, two.os_features) == (2, 3, (), ("erofs",))
    assert (one.env, one.command, one.working_dir, one.user, one.labels) == (
        {"A": "1", "B": "2"},
        ("python3",),
        "/w",
        "1000",
        {"l": "m"},
    )


def test_digests_of_lock_and_spec_and_the_ids_of_layers_can_be_read_back():
    built = image(lock_digest=Digest.of(b"lock"), spec_digest=Digest.of(b"spec"), annotations={"x": "y"})

    index, plain, erofs = documents(built)
    notes = {
        "x": "y",
        media_types.LOCK_DIGEST: str(Digest.of(b"lock")),
        media_types.SPEC_DIGEST: str(Digest.of(b"spec")),
    }
    where = f"{built.erofs_manifest.digest} {built.erofs_manifest.size}"
    assert index.annotations == erofs.annotations == notes
    assert plain.annotations == {**notes, media_types.EROFS_MANIFEST: where}
    for layer in documents(built)[1].layers:
        assert layer.annotations[media_types.LAYER_ID] in {"x/base", "x/top"}
        assert media_types.EROFS_CHUNK_INDEX_DIGEST in layer.annotations


def test_blobs_come_children_first_and_are_what_names_them():
    built = image()

    assert list(built.blobs)[-1] == built.descriptor
    assert all((what.digest, what.size) == (Digest.of(data), len(data)) for what, data in built.blobs.items())


def test_the_same_layers_give_the_same_image_and_another_order_another():
    assert image(env={"a": "1", "b": "2"}).descriptor == image(env={"b": "2", "a": "1"}).descriptor
    assert assemble(platform=X86, layers=LAYERS[::-1]).descriptor != image().descriptor


def test_the_index_of_an_unchanged_prefix_of_layers_names_the_same_blobs():
    child = assemble(platform=X86, layers=[*LAYERS, layer_of([file("c", b"3")], name="y/top").layer])
    _, plain, _ = documents(child)

    assert plain.layers[:2] == documents(image())[1].layers
