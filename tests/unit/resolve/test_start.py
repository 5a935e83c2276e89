"""What a resolution says of a start holds for images of others too."""

import pytest

from envbuilder.oci.platform import Platform
from envbuilder.resolve.resolver import resolve
from envbuilder.store.memory import MemoryTarget
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
