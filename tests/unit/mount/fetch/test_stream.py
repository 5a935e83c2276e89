"""What a streamer must know before a chunk index is here."""

from dataclasses import replace

import pytest

from envbuilder.layer.pages import GROUP_SIZE
from envbuilder.layer.tree import file
from envbuilder.mount.fetch.stream import chunk_size
from envbuilder.mount.request import Device
from envbuilder.oci import media_types
from envbuilder.testing.layers import layer_of

SIZE = 9 * GROUP_SIZE


def device(chunk: int) -> Device:
    layer = layer_of([file("x", bytes(SIZE - 4096))], chunk_size=chunk).layer
    return Device(layer.blob, layer.tar_size)


@pytest.mark.parametrize("chunk", [GROUP_SIZE, 4 * GROUP_SIZE])
def test_chunks_of_layers_of_now_and_of_old_are_known_before_their_index(chunk):
    assert chunk_size(device(chunk)) == chunk


def test_chunks_of_a_layer_that_is_cut_otherwise_are_not_known():
    assert chunk_size(device(3 * GROUP_SIZE)) == 0


@pytest.mark.parametrize("text", ["", "0:1", "x"])
def test_chunks_are_not_known_where_the_annotation_is_malformed(text):
    good = device(GROUP_SIZE)
    blob = replace(good.blob, annotations={media_types.EROFS_CHUNK_INDEX_RANGE: text})

    assert chunk_size(replace(good, blob=blob)) == 0
