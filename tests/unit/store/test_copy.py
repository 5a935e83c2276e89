import io
import threading
from functools import partial

import pytest

from envbuilder.digest import Descriptor, Digest, DigestMismatch, InvalidJson, describe
from envbuilder.errors import UnavailableError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.copy import GraphTooLarge, copy, copy_plan
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound


def push(target, data, media_type="application/octet-stream"):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def image(target, *layers, config=b"{}"):
    descriptors = [push(target, layer, media_types.OCI_LAYER_TAR) for layer in layers]
    manifest = Manifest(config=push(target, config, media_types.OCI_CONFIG), layers=tuple(descriptors))
    return push(target, manifest.dump(), media_types.OCI_MANIFEST)


def index(target, *manifests):
    return push(target, Index(manifests=manifests).dump(), media_types.OCI_INDEX)


class Recording(MemoryTarget):
    """Writes down every push and tag."""

    def __init__(self):
        super().__init__()
        self.order = []

    def push(self, what, content):
        super().push(what, content)
        self.order.append(what.digest)

    def tag(self, what, tag):
        super().tag(what, tag)
        self.order.append(tag)


@pytest.fixture
def source():
    return MemoryTarget("here")


def test_the_whole_graph_is_copied_children_first_and_the_tag_last(source):
    one, two = image(source, b"base", b"one"), image(source, b"base", b"two", config=b'{"a":1}')
    root = index(source, one, two)
    target = Recording()

    report = copy(source, root, target, tag="v1")

    assert target.lookup("v1") == root
    assert target.order[-4:] == [one.digest, two.digest, root.digest, "v1"]
    assert len(target.order) == len(set(target.order)) == 9
    assert (report.copied, report.skipped) == (8, 0)
    assert report.copied_bytes == 4 + 3 + 3 + 2 + 7 + one.size + two.size + root.size


def test_what_the_target_has_is_skipped(source):
    root = image(source, b"base", b"one")
    target = Recording()
    push(target, b"base")
    target.order.clear()

    report = copy(source, root, target)

    assert describe(b"base").digest not in target.order
    assert (report.copied, report.skipped, report.skipped_bytes) == (3, 1, 4)


def test_a_second_copy_moves_nothing(source):
    root = image(source, b"base")
    target = Recording()
    copy(source, root, target)
    target.order.clear()

    report = copy(source, root, target, tag="again")

    assert target.order == ["again"]
    assert (report.copied, report.copied_bytes, report.skipped) == (0, 0, 3)


def test_a_plan_moves_nothing_and_can_be_acted_on(source):
    root = image(source, b"base")
    target = Recording()

    plan = copy_plan(source, root, target)

    assert target.order == []
    assert {blob.digest for blob in plan.blobs} == {Digest.of(b"base"), Digest.of(b"{}")}
    assert plan.size == 4 + 2 + root.size
    assert copy(source, root, target, plan=plan).copied == 3


def test_the_first_blobs_move_while_the_target_is_asked_for_others(source):
    root = image(source, b"base", b"other", b"more")
    moved, asked = threading.Event(), []

    class Slow(Recording):
        def has(self, what):
            asked.append(what.digest)
            if what.digest == Digest.of(b"other"):
                assert moved.wait(5)  # no answer before something has moved
            return super().has(what)

        def push(self, what, content):
            super().push(what, content)
            moved.set()

    target = Slow()
    report = copy(source, root, target)

    assert (report.copied, report.skipped) == (5, 0)
    assert len(set(asked)) == 5


def test_what_is_found_there_is_told_and_is_no_progress(source):
    root = image(source, b"base" * 1000, b"one")
    target, seen, found = Recording(), [], []
    push(target, b"base" * 1000)
    target.order.clear()

    report = copy(source, root, target, progress=lambda what, size: seen.append(size), found=found.append)

    assert [blob.digest for blob in found] == [Digest.of(b"base" * 1000)]
    assert sum(seen) == 3 + 2 + root.size
    assert (report.copied_bytes, report.skipped_bytes) == (3 + 2 + root.size, 4000)
    assert Digest.of(b"base" * 1000) not in target.order


def test_progress_adds_up_to_what_was_copied(source):
    root = image(source, b"base" * 1000, b"one")
    seen = []

    report = copy(source, root, MemoryTarget(), progress=lambda what, size: seen.append(size))

    assert sum(seen) == report.copied_bytes == 4000 + 3 + 2 + root.size


def test_a_blob_that_the_target_took_from_elsewhere_counts_as_skipped(source):
    root = image(source, b"base")

    class Mounting(MemoryTarget):
        def push(self, what, content):
            super().push(what, (lambda: io.BytesIO(b"base")) if what.size == 4 else content)

    report = copy(source, root, Mounting())

    assert (report.copied, report.skipped, report.skipped_bytes) == (2, 1, 4)


def test_an_error_says_which_side_and_which_blob(source):
    root = image(source, b"base")
    absent = Manifest(config=describe(b"gone", media_types.OCI_CONFIG), layers=()).dump()
    broken = push(source, absent, media_types.OCI_MANIFEST)

    with pytest.raises(NotFound, match=f"source here: {describe(b'gone').digest}"):
        copy(source, broken, MemoryTarget("there"))

    class Down(MemoryTarget):
        def push(self, what, content):
            raise UnavailableError("no answer")

    with pytest.raises(UnavailableError, match=r"destination there: sha256:\w{64}: no answer"):
        copy(source, root, Down("there"))


def test_a_source_that_lies_is_found_out_on_any_target(source):
    root = image(source, b"base")

    class Lying(MemoryTarget):
        def fetch(self, what):
            return io.BytesIO(b"BASE") if what.size == 4 else source.fetch(what)

    with pytest.raises(DigestMismatch, match="source liar"):
        copy(Lying("liar"), root, MemoryTarget())


def test_a_failure_leaves_no_manifest_and_no_tag(source):
    root = image(source, b"base", b"one")

    class Full(Recording):
        def push(self, what, content):
            if what.digest == Digest.of(b"one"):
                raise UnavailableError("full")
            super().push(what, content)

    target = Full()
    with pytest.raises(UnavailableError):
        copy(source, root, target, tag="v1")

    assert not target.has(root)
    with pytest.raises(NotFound):
        target.lookup("v1")


def test_the_first_error_stops_the_others(source):
    endless = b"x" * 100_000
    root = image(source, endless, b"bad")
    started, failed = threading.Event(), threading.Event()

    class Target(MemoryTarget):
        stopped = False

        def push(self, what, content):
            if what.size == 3:
                started.wait(10)
                failed.set()
                raise UnavailableError("this one")
            if what.size == 100_000:
                with content() as stream:
                    started.set()
                    failed.wait(10)
                    try:
                        while stream.read(1):
                            pass
                    except Exception:
                        self.stopped = True
                        raise

    target = Target()
    with pytest.raises(UnavailableError, match="this one"):
        copy(source, root, target, jobs=2)
    assert target.stopped


def test_a_graph_that_is_too_deep_is_refused(source):
    what = image(source, b"base")
    for _ in range(4):
        what = index(source, what)

    with pytest.raises(GraphTooLarge, match="4 levels"):
        copy_plan(source, what, MemoryTarget())


def test_a_claimed_cycle_is_refused(source):
    """Real digests can't form one; a source that does not verify could claim it."""
    loop = Descriptor(media_type=media_types.OCI_INDEX, digest=Digest.of(b"loop"), size=1)

    class Cyclic(MemoryTarget):
        def fetch(self, what):
            return io.BytesIO(Index(manifests=(loop,)).dump())

    with pytest.raises(DigestMismatch):
        copy_plan(Cyclic(), loop, MemoryTarget())


def test_one_digest_with_two_sizes_is_refused(source):
    layer = describe(b"base", media_types.OCI_LAYER_TAR)
    other = Descriptor(media_type=layer.media_type, digest=layer.digest, size=5)
    root = push(source, Manifest(config=layer, layers=(other,)).dump(), media_types.OCI_MANIFEST)

    with pytest.raises(DigestMismatch):
        copy_plan(source, root, MemoryTarget())


def test_what_is_no_manifest_is_refused_by_name(source):
    with pytest.raises(GraphTooLarge, match="want an image manifest or index"):
        copy_plan(source, push(source, b"{}", "text/plain"), MemoryTarget())
    with pytest.raises(InvalidJson):
        copy_plan(source, push(source, b"[]", media_types.OCI_INDEX), MemoryTarget())
