import io
from functools import partial

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.archive import ArchiveTarget, ArchiveWriter
from envbuilder.store.copy import copy
from envbuilder.store.copy_referrers import copy_referrers
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach, referrers


def push(target, data, media_type="application/octet-stream"):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def image(target):
    layer = push(target, b"layer", media_types.OCI_LAYER_TAR)
    manifest = Manifest(config=push(target, b"{}", media_types.OCI_CONFIG), layers=(layer,))
    child = push(target, manifest.dump(), media_types.OCI_MANIFEST)
    return child, push(target, Index(manifests=(child,)).dump(), media_types.OCI_INDEX)


def attached(target, subject, data):
    blob = describe(data)
    return attach(target, subject, "application/vnd.test", [(blob, partial(io.BytesIO, data))])


def digests(found):
    return {each.digest for each in found}


def test_referrers_of_the_image_of_its_manifests_and_of_referrers_follow():
    source, target = MemoryTarget(), MemoryTarget()
    child, root = image(source)
    sbom, trace = attached(source, root, b"sbom"), attached(source, child, b"trace")
    signature = attached(source, sbom, b"signature")
    copy(source, root, target)

    report = copy_referrers(source, root, target)

    assert digests(report.referrers) == digests([sbom, trace, signature])
    assert digests(referrers(target, root)) == {sbom.digest}
    assert digests(referrers(target, child)) == {trace.digest}
    assert digests(referrers(target, sbom)) == {signature.digest}
    assert target.has(describe(b"signature"))


def test_doing_it_again_moves_nothing():
    source, target = MemoryTarget(), MemoryTarget()
    _, root = image(source)
    attached(source, root, b"sbom")
    copy(source, root, target)
    copy_referrers(source, root, target)

    assert copy_referrers(source, root, target).copied_bytes == 0
    assert len(referrers(target, root)) == 1


def test_an_archive_takes_them_before_it_is_finished(tmp_path):
    source = MemoryTarget()
    _, root = image(source)
    sbom = attached(source, root, b"sbom")
    writer = ArchiveWriter(tmp_path / "image.tar")
    copy(source, root, writer, tag="1", finish=False)
    copy_referrers(source, root, writer)
    writer.finish(root)

    archive = ArchiveTarget(tmp_path / "image.tar")

    assert archive.lookup("1") == root
    assert digests(referrers(archive, root)) == {sbom.digest}


class Counting(MemoryTarget):
    """Notes each change of a tag."""

    def __init__(self):
        super().__init__()
        self.changed = []

    def swap_tag(self, tag, what, data, was):
        self.changed.append(tag)
        return super().swap_tag(tag, what, data, was)


def test_the_list_of_all_that_is_copied_is_changed_once():
    source, target = MemoryTarget(), Counting()
    _, root = image(source)
    found = [attached(source, root, data) for data in (b"sbom", b"lock", b"provenance")]
    copy(source, root, target)

    copy_referrers(source, root, target)

    assert digests(referrers(target, root)) == digests(found)
    assert len(target.changed) == 1
