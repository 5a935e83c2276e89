"""What is made of an image of others is kept for who starts it again, and proved only by where it came from.

Whoever starts an image may have a copy of another's manifest in a registry of their own, which says of its layers what
the manifest does not prove.
"""

from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.image.inspect import open_image
from envbuilder.mount.foreign.image import foreign_image
from envbuilder.mount.foreign.layerindex import attach_layer_index
from envbuilder.mount.foreign.pulled import pull_layer
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member, push_foreign

TAR = foreign_tar([member("a", b"good"), member("b", b"evil"), member("c", bytes(range(256)) * 2000)])


def place(folder, layer):
    """A repository that has an image of ``layer``, and that image."""
    target = LayoutTarget(folder, create=True)
    what = push_foreign(target, [layer])
    return target, open_image(target, what, Platform("x86_64"))


@pytest.mark.parametrize("believes", [True, False], ids=["believing", "pulling"])
def test_names_that_one_repository_gave_to_the_files_of_a_layer_are_not_shown_of_another_s(tmp_path, believes):
    layer = gzip_layer(TAR)
    target, image = place(tmp_path / "ours", layer)
    made = pull_layer(target, layer.descriptor, Digest.of(TAR), tmp_path / "tar", lambda _size: None)
    attach_layer_index(target, layer.descriptor, made)
    theirs, same = place(tmp_path / "theirs", layer)
    offsets = {each.path: each.offset for each in made.placed}
    swapped = {"a": offsets["b"], "b": offsets["a"]}
    lie = replace(made, placed=tuple(replace(each, offset=swapped.get(each.path, each.offset)) for each in made.placed))
    attach_layer_index(theirs, layer.descriptor, lie)
    before = foreign_image(image, target, tmp_path / "cache", trusted=believes)

    lied = foreign_image(same, theirs, tmp_path / "cache", trusted=True)
    after = foreign_image(image, target, tmp_path / "cache", trusted=believes)

    assert lied.metadata != before.metadata
    assert (after.metadata, after.devices) == (before.metadata, before.devices)
