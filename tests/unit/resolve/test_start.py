"""What a resolution says of a start holds for images of others too."""

import io

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.registry.errors import Rejected
from envbuilder.resolve.resolver import resolve
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach
from envbuilder.testing.foreign import chunked_layer, foreign_tar, gzip_layer, member, push_foreign, stargz_layer

TAR = foreign_tar([member("a", b"hello")])


@pytest.mark.parametrize(
    ("layers", "start"),
    [
        ([stargz_layer(TAR)], "lazy"),
        ([chunked_layer(TAR), stargz_layer(TAR)], "lazy"),
        ([gzip_layer(TAR)], "full"),
        ([chunked_layer(TAR), gzip_layer(TAR)], "full"),
        ([], "full"),
    ],
)
def test_an_image_of_others_starts_lazily_when_each_layer_has_a_table_of_contents(layers, start):
    target = MemoryTarget()
    found = resolve(target, push_foreign(target, layers), Platform("x86_64"), asked="x", pinned="x")

    assert (found.start, found.lazy) == (start, None)
    assert ("table of contents" in found.why) == (start == "lazy")
    assert found.to_json()["start"] == start


def indexed(target, layer):
    index = describe(b"index", media_types.FOREIGN_INDEX)
    attach(target, layer.descriptor, media_types.FOREIGN_INDEX_ARTIFACT, [(index, lambda: io.BytesIO(b"index"))])


def resolved(target, root, **options):
    return resolve(target, root, Platform("x86_64"), asked="x", pinned="x", **options)


def test_an_image_whose_plain_layers_have_an_index_beside_them_starts_lazily_where_it_is_believed():
    target = MemoryTarget()
    gzip, chunked = gzip_layer(TAR), chunked_layer(TAR)
    root = push_foreign(target, [gzip, chunked])
    before = resolved(target, root, believes_indexes=True)
    indexed(target, gzip)

    assert before.start == "full"
    assert resolved(target, root).start == "full"
    assert resolved(target, root, believes_indexes=True).start == "lazy"
    assert "index beside" in resolved(target, root, believes_indexes=True).why


def test_one_layer_without_an_index_is_enough_for_a_pull():
    target = MemoryTarget()
    layers = [gzip_layer(TAR), gzip_layer(foreign_tar([member("b", b"other")]))]
    root = push_foreign(target, layers)
    indexed(target, layers[0])

    assert resolved(target, root, believes_indexes=True).start == "full"


def test_a_registry_that_cannot_say_what_lies_beside_a_layer_is_no_error():
    class Unsaying(MemoryTarget):
        def listed_referrers(self, subject, artifact_type):
            raise Rejected("GET /referrers: 400")

    target = Unsaying()
    root = push_foreign(target, [gzip_layer(TAR)])

    assert resolved(target, root, believes_indexes=True).start == "full"
