"""EROFS metadata of ours, read back as a tree and written again, are the same bytes; so more can be laid over them."""

import pytest
from hypothesis import given

from envbuilder.layer.erofs import Inode, write_erofs
from envbuilder.layer.erofs_format import Device
from envbuilder.layer.metadata import erofs_metadata, merged_metadata
from envbuilder.layer.tree import file
from envbuilder.mount.erofstree import BadTree, ErofsTree
from envbuilder.mount.foreign.based import read_tree
from envbuilder.testing.layers import layer_of
from envbuilder.testing.trees import trees


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    return tmp_path_factory.mktemp("metadata") / "image.erofs"


def devices_of(layers):
    return [Device(built.layer.blob.digest.hex, built.layer.tar_size) for built in layers]


@given(below=trees(), above=trees())
def test_a_tree_that_was_read_back_is_written_as_it_was(metadata, below, above):
    layers = [layer_of(below, name="one"), layer_of(above, name="two")]
    image = erofs_metadata([built.layer for built in layers])
    metadata.write_bytes(image)

    assert merged_metadata([], devices_of(layers), below=read_tree(metadata)) == image


@given(below=trees(), above=trees())
def test_a_layer_laid_over_what_was_read_back_is_as_if_both_had_been_laid_over_each_other(metadata, below, above):
    layers = [layer_of(below, name="one"), layer_of(above, name="two")]
    metadata.write_bytes(erofs_metadata([layers[0].layer]))

    laid = merged_metadata([layers[1].layer.placed], devices_of(layers), below=read_tree(metadata))

    assert laid == erofs_metadata([built.layer for built in layers])


def test_a_file_that_only_the_metadata_hold_stays_whole_in_blocks_of_512(metadata):
    # Of 3072 bytes, the end of a tar block: what follows it in the tar is no zero, so the metadata hold it.
    sizes = [512, 3072, 3584, 4096, 4608, 9 * 4096 + 1024]
    layer = layer_of([file(f"f{size}", bytes([size % 251]) * size) for size in sizes])
    metadata.write_bytes(erofs_metadata([layer.layer]))
    again = metadata.with_name("again.erofs")
    again.write_bytes(merged_metadata([], devices_of([layer]), below=read_tree(metadata), block_bits=9))

    assert contents(again, layer.tar) == contents(metadata, layer.tar)
    assert set(contents(again, layer.tar)) == {f"f{size}" for size in sizes}


def contents(metadata, tar):

    tree, found = ErofsTree(metadata), {}
    for name, (nid, _) in tree.names(tree.root).items():
        if name not in (b".", b".."):
            parts = [
                (tree.image if each.device < 0 else tar)[each.offset : each.offset + each.size]
                for each in tree.extents(nid)
            ]
            found[name.decode()] = b"".join(bytes(part) for part in parts)
    return found


def test_metadata_whose_folders_go_in_a_circle_are_refused(metadata):

    root = Inode(mode=0o40755)
    below = Inode(mode=0o40755)
    root.children, below.children = {b"a": below}, {}
    image = bytearray(write_erofs(root, [], mtime_s=1))
    metadata.write_bytes(image)
    assert list(read_tree(metadata).children) == ["a"]

    twice = Inode(mode=0o40755, children={b"a": below, b"b": below})
    metadata.write_bytes(write_erofs(twice, [], mtime_s=1))
    with pytest.raises(BadTree, match="two names"):
        read_tree(metadata)
