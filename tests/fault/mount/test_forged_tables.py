"""What is made of an image of others is kept for who starts it again, and proved only by where it came from.

Whoever starts an image may have a copy of another's manifest in a registry of their own, which says of its layers what
the manifest does not prove.
"""

import gzip
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.image.inspect import open_image
from envbuilder.mount.foreign.image import foreign_image
from envbuilder.mount.foreign.layerindex import attach_layer_index
from envbuilder.mount.foreign.pulled import pull_layer
from envbuilder.mount.foreign.spans import read_spans
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member, push_foreign, stargz_layer

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


class Lying:
    """A registry that gives the table of an eStargz layer at another place, where it says that it is."""

    def __init__(self, target, layer, stored):
        self._target, self._layer, self._stored = target, layer, stored

    def __getattr__(self, name):
        return getattr(self._target, name)

    def fetch_range(self, what, offset, size):
        if what.digest == self._layer.digest:
            return self._stored[offset : offset + size]
        return self._target.fetch_range(what, offset, size)


def test_where_another_registry_says_that_a_table_begins_is_not_believed(tmp_path):
    layer = stargz_layer(TAR)
    target, image = place(tmp_path / "ours", layer)
    theirs, same = place(tmp_path / "theirs", layer)
    table_at = int(layer.blob[-51:][16:32], 16)
    table = gzip.decompress(layer.blob[table_at:-51])
    last = max(piece.member for piece in read_spans_of(target, image, tmp_path / "first").pieces)
    early = last + 1
    room = len(layer.blob) - 51 - early
    padded = padded_gzip(table, room)
    stored = layer.blob[:early] + padded + layer.blob[-51:].replace(b"%016x" % table_at, b"%016x" % early)
    assert len(stored) == len(layer.blob)

    foreign_image(same, Lying(theirs, layer.descriptor, stored), tmp_path / "cache")
    made = foreign_image(image, target, tmp_path / "cache")

    spans = read_spans(made.devices[0])
    start, end = spans.blob_offsets[-2:]
    spans.read(len(spans) - 1, layer.blob[start:end], source="test")  # all of the last chunk


def read_spans_of(target, image, cache):
    return read_spans(foreign_image(image, target, cache).devices[0])


def padded_gzip(data, size):
    """A gzip member of ``data`` of just ``size`` bytes: a name of many letters."""
    plain = gzip.compress(data, 6, mtime=0)
    return plain[:3] + b"\x08" + plain[4:10] + b"x" * (size - len(plain) - 1) + b"\0" + plain[10:]


def test_a_layer_of_two_images_that_start_at_once_is_pulled_once(tmp_path, monkeypatch):
    """Both would write it to one file, and what one has proved the other would write over while it is read."""
    shared, other = gzip_layer(TAR), gzip_layer(foreign_tar([member("d", b"other")]))
    target, image = place(tmp_path / "ours", shared)
    what = push_foreign(target, [shared, other])
    pulls = []

    def slowly(source, layer, *rest):
        pulls.append(layer.digest)
        made = pull_layer(source, layer, *rest)
        time.sleep(0.3)  # it lies there, proved, and is about to be read
        return made

    monkeypatch.setattr("envbuilder.mount.foreign.image.pull_layer", slowly)
    images = [image, open_image(target, what, Platform("x86_64"))]
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda each: foreign_image(each, target, tmp_path / "cache"), images))

    assert None not in made
    assert sorted(pulls, key=str) == sorted({shared.descriptor.digest, other.descriptor.digest}, key=str)
    for device, layer in [(made[0].devices[0], shared), (made[1].devices[1], other)]:
        data = (tmp_path / "cache/chunks/blobs" / device.stored_as.hex / "data").read_bytes()
        assert data.startswith(layer.tar)
