"""The files of a base, in which its interpreter compiles for everybody whose base it is, are those of its layers."""

import os

from envbuilder.cli.bases import unpacked_base
from envbuilder.digest import Digest
from envbuilder.lock.model import BaseImage, BaseLayer
from envbuilder.oci.platform import Platform
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member, push_foreign


def base(target, data):
    """A base with one file, as a lock may call it: by the digest of any manifest."""
    file = member("usr/bin/python3", data, uid=os.getuid(), gid=os.getgid())
    layer = gzip_layer(foreign_tar([file]))
    push_foreign(target, [layer])
    what = layer.descriptor
    made = BaseLayer(
        digest=what.digest, size=what.size, media_type=what.media_type, diff_id=Digest.of(layer.tar), by=""
    )
    return BaseImage(
        manifest=Digest.of(b"python:3.13"), config=Digest.of(b"{}"), python="/usr/bin/python3", layers=(made,)
    )


def test_a_lock_that_gives_a_base_other_layers_changes_nothing_for_locks_with_that_base(tmp_path):
    target, platform = MemoryTarget(), Platform("x86_64")
    lie, ours = base(target, b"evil"), base(target, b"good")
    assert lie.manifest == ours.manifest

    trees = [unpacked_base(each, platform, target, tmp_path) for each in (lie, ours, lie)]

    assert [(tree / "usr/bin/python3").read_bytes() for tree in trees] == [b"evil", b"good", b"evil"]
    assert trees[0] == trees[2]
