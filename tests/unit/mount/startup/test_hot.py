"""A hot bundle proves every page against the image; what does not belong to the image is never given."""

import hashlib
import io
from itertools import pairwise
from random import Random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.layer import pages as tree
from envbuilder.layer.pages import GROUP_SIZE, PAGE_SIZE
from envbuilder.layer.tree import file
from envbuilder.mount.startup.hot import BadHotPage, HotDevice, Prover, close_frame, frame_data, plan_frames
from envbuilder.mount.startup.hotbuild import is_of_use, page_root
from envbuilder.mount.startup.trace import Frame, Pages, Trace, merge
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.layers import layer_of

LAYER = layer_of([file("data", Random(3).randbytes(900_000))])
TAR = LAYER.tar
ROOT = page_root(LAYER.layer.blob)
GROUPS = [TAR[at : at + GROUP_SIZE] for at in range(0, len(TAR), GROUP_SIZE)]
LEAVES = [tree.leaves(group) for group in GROUPS]
NODES = b"".join(tree.node(each) for each in LEAVES)
DEVICE = HotDevice(len(TAR), ROOT)
PAGES = len(TAR) // PAGE_SIZE


def bundle(ranges, tar=TAR, leaves=LEAVES):
    plans = plan_frames(ranges)
    data = [
        frame_data(
            plan,
            {(device, group): leaves[group] for device, group in plan.fresh},
            [tar[part.first * PAGE_SIZE : (part.first + part.count) * PAGE_SIZE] for part in plan.parts],
        )
        for plan in plans
    ]
    stored = [close_frame(*both, level=3) for both in pairwise([b"", *data])]
    frames = [
        Frame(len(each), plan.pages, hashlib.sha256(each).hexdigest()) for each, plan in zip(stored, plans, strict=True)
    ]
    return plans, stored, frames


def opened(prover, plans, stored, frames):
    for data, frame, plan in zip(stored, frames, plans, strict=True):
        for part, pages in prover.open(data, frame, plan):
            yield part, bytes(pages)


@given(st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 90)), min_size=1, max_size=40))
@settings(max_examples=25)
def test_a_bundle_gives_exactly_the_pages_of_its_ranges(drawn):
    ranges = merge([[Pages(0, first, min(count, PAGES - first)) for first, count in drawn]])
    plans, stored, frames = bundle(ranges)
    got = {}
    for part, pages in opened(Prover({0: DEVICE}, NODES), plans, stored, frames):
        for place in range(part.count):
            got[part.first + place] = pages[place * PAGE_SIZE : (place + 1) * PAGE_SIZE]

    want = {page for each in ranges for page in range(each.first, each.first + each.count)}
    assert got == {page: TAR[page * PAGE_SIZE : (page + 1) * PAGE_SIZE] for page in want}


@pytest.mark.parametrize(("pages", "of_use"), [(PAGES // 2 - 1, True), (PAGES // 2 + 2, False)])
def test_a_bundle_that_no_start_would_read_is_not_made(pages, of_use):
    target = MemoryTarget()
    target.push(LAYER.layer.blob, lambda: io.BytesIO(LAYER.blob))
    digest = LAYER.layer.blob.digest
    ranges = (Pages(0, 0, pages),)
    trace = Trace(image=digest, devices=(digest,), commands=(), runs=1, read_ahead=0, ranges=ranges)

    assert is_of_use(trace, [LAYER.layer.blob], target) == of_use


def test_the_root_in_the_manifest_is_that_of_the_tar():
    assert tree.root(NODES) == ROOT


def test_a_page_of_another_content_is_refused_though_its_frame_is_the_one_that_the_trace_names():
    lying = bytearray(TAR)
    lying[5 * PAGE_SIZE] ^= 1
    plans, stored, frames = bundle([Pages(0, 4, 3)], tar=bytes(lying))

    with pytest.raises(BadHotPage, match="group 0 of device 0"):
        list(opened(Prover({0: DEVICE}, NODES), plans, stored, frames))


def test_a_page_of_another_content_is_refused_in_a_frame_behind_the_one_that_proves_its_group():
    lying = bytearray(TAR)
    lying[9 * PAGE_SIZE] ^= 1
    ranges = [Pages(0, 4, 3), Pages(0, 64, 150), Pages(0, 8, 3)]
    plans = plan_frames(ranges, [153, 3])
    data = [
        frame_data(
            plan,
            {(device, group): LEAVES[group] for device, group in plan.fresh},
            [lying[part.first * PAGE_SIZE : (part.first + part.count) * PAGE_SIZE] for part in plan.parts],
        )
        for plan in plans
    ]
    stored = [close_frame(*both, level=3) for both in pairwise([b"", *data])]
    frames = [Frame(len(each), 0, hashlib.sha256(each).hexdigest()) for each in stored]
    prover = Prover({0: DEVICE}, NODES)

    assert len(prover.open(stored[0], frames[0], plans[0])) == len(plans[0].parts)
    with pytest.raises(BadHotPage, match="page 8 of device 0"):
        prover.open(stored[1], frames[1], plans[1])


@pytest.mark.parametrize("lying_copy", [0, 1])
def test_a_page_that_a_trace_names_twice_is_proved_twice(lying_copy):
    (plan,) = plan_frames([Pages(0, 4, 3), Pages(0, 4, 3)])
    honest = TAR[4 * PAGE_SIZE : 7 * PAGE_SIZE]
    copies = [honest, honest]
    copies[lying_copy] = bytes(len(honest))
    own = slice(4 * tree.HASH_SIZE, 7 * tree.HASH_SIZE)
    sent = LEAVES[0][: own.start] + LEAVES[0][own.stop + 3 * tree.HASH_SIZE :]
    for leaves in (sent, LEAVES[0][: own.start] + LEAVES[0][own.stop :]):
        stored = close_frame(b"", leaves + b"".join(copies), level=3)
        frame = Frame(len(stored), 6, hashlib.sha256(stored).hexdigest())
        with pytest.raises(BadHotPage):
            Prover({0: DEVICE}, NODES).open(stored, frame, plan)


@pytest.mark.parametrize("lying_copy", [0, 1])
def test_a_page_that_is_named_twice_in_a_later_frame_is_proved_twice(lying_copy):
    plans = plan_frames([Pages(0, 4, 3)] * 3, [3, 6])
    good = TAR[4 * PAGE_SIZE : 7 * PAGE_SIZE]
    first, copies = frame_data(plans[0], {(0, 0): LEAVES[0]}, [good]), [good, good]
    copies[lying_copy] = bytes(len(good))
    stored = [close_frame(b"", first, level=3), close_frame(first, b"".join(copies), level=3)]
    frames = [Frame(len(each), 3, hashlib.sha256(each).hexdigest()) for each in stored]
    prover = Prover({0: DEVICE}, NODES)

    assert [bytes(pages) for _, pages in prover.open(stored[0], frames[0], plans[0])] == [good]
    with pytest.raises(BadHotPage, match="page 4"):
        prover.open(stored[1], frames[1], plans[1])


def test_leaves_that_follow_from_pages_of_the_frame_are_not_sent():
    (whole,) = plan_frames([Pages(0, 0, 64)])
    (part,) = plan_frames([Pages(0, 0, 10)])
    pages = [bytes(3)]

    assert frame_data(whole, {(0, 0): LEAVES[0]}, pages) == pages[0]
    assert frame_data(part, {(0, 0): LEAVES[0]}, pages) == LEAVES[0][10 * tree.HASH_SIZE :] + pages[0]


def test_a_frame_is_smaller_behind_one_that_resembles_it():
    data = Random(5).randbytes(100_000)

    assert len(close_frame(data, data[::-1] + data, level=3)) < 101_000


def test_leaves_made_for_another_page_are_refused():
    lying = bytearray(TAR)
    lying[5 * PAGE_SIZE] ^= 1
    leaves = [tree.leaves(lying[at : at + GROUP_SIZE]) for at in range(0, len(lying), GROUP_SIZE)]
    plans, stored, frames = bundle([Pages(0, 4, 3)], tar=bytes(lying), leaves=leaves)

    with pytest.raises(BadHotPage, match="group 0 of device 0"):
        list(opened(Prover({0: DEVICE}, NODES), plans, stored, frames))


def test_nodes_made_for_another_image_are_refused():
    with pytest.raises(BadHotPage, match="proofs"):
        Prover({0: DEVICE}, bytes(32) + NODES[32:])


@pytest.mark.parametrize("proofs", [b"", NODES[:-32], NODES + bytes(32)])
def test_proofs_of_another_length_are_refused(proofs):
    with pytest.raises(BadHotPage):
        Prover({0: DEVICE}, proofs)


def test_a_frame_other_than_the_trace_names_is_refused_before_it_is_unpacked():
    plans, stored, frames = bundle([Pages(0, 4, 3)])

    with pytest.raises(BadHotPage, match="not the one"):
        list(opened(Prover({0: DEVICE}, NODES), plans, [stored[0][:-1] + b"x"], frames))


def test_a_frame_that_unpacks_to_more_than_its_pages_is_refused():
    plans, _, _ = bundle([Pages(0, 4, 3)])
    bomb = zstandard.compress(bytes(64 << 20))
    frame = Frame(len(bomb), 3, hashlib.sha256(bomb).hexdigest())

    with pytest.raises(BadHotPage, match="does not hold"):
        Prover({0: DEVICE}, NODES).open(bomb, frame, plans[0])


@pytest.mark.parametrize("first", [PAGES, PAGES - 1])
def test_pages_behind_the_end_are_refused(first):
    plans = plan_frames([Pages(0, first, 200)])

    with pytest.raises(BadHotPage):
        Prover({0: DEVICE}, NODES).open(b"", Frame(0, 200, hashlib.sha256(b"").hexdigest()), plans[0])
