"""A trace and its bundle, made of one image, give every image that shares layers with it exactly its pages."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.digest import Digest
from envbuilder.layer import pages as tree
from envbuilder.layer.pages import GROUP_SIZE, PAGE_SIZE
from envbuilder.layer.tree import file
from envbuilder.mount.startup.hot import (
    FramePlans,
    HotDevice,
    Prover,
    close_frame,
    frame_data,
    page_root,
    plan_frames,
    proof_order,
)
from envbuilder.mount.startup.trace import Frame, InvalidTrace, Pages, Trace, merge, parse_trace
from envbuilder.testing.layers import layer_of

LAYERS = [layer_of([file("data", Random(seed).randbytes(700_000 + seed))]) for seed in range(4)]
DIGESTS = [each.layer.blob.digest for each in LAYERS]
PAGES = min(len(each.tar) for each in LAYERS) // PAGE_SIZE


def recorded(layers, ranges):
    """The trace of an image of ``layers``, numbers, as it is stored, and its bundle."""
    plans = plan_frames(ranges)
    touched = sorted({each.device for each in ranges})
    groups = {
        number: [tar[at : at + GROUP_SIZE] for at in range(0, len(tar), GROUP_SIZE)]
        for number, tar in ((number, LAYERS[layers[number]].tar) for number in touched)
    }
    proofs = b"".join(tree.node(tree.leaves(group)) for number in touched for group in groups[number])
    data = [
        frame_data(
            plan,
            {(device, group): tree.leaves(groups[device][group]) for device, group in plan.fresh},
            [pages_of(layers[part.device], part.first, part.count) for part in plan.parts],
        )
        for plan in plans
    ]
    stored = [close_frame(*both, level=1) for both in pairwise([b"", *data])]
    trace = Trace(
        image=Digest.of(b"recorded"),
        devices=tuple(DIGESTS[number] for number in layers),
        commands=("x",),
        runs=1,
        read_ahead=0,
        ranges=tuple(ranges),
        frames=tuple(
            Frame(len(each), plan.pages, Digest.of(each).hex) for each, plan in zip(stored, plans, strict=True)
        ),
        proofs=len(proofs),
        sizes=tuple(len(LAYERS[number].tar) for number in layers),
    )
    return parse_trace(trace.dump(), source="test"), proofs + b"".join(stored)


def pages_of(layer, first, count):
    return LAYERS[layer].tar[first * PAGE_SIZE : (first + count) * PAGE_SIZE]


def given_by(trace, bundle, layers):
    """The pages that ``bundle`` gives an image of ``layers``, which ``trace`` is now of: (layer, page) -> bytes."""
    devices = {}
    for number in proof_order(trace):
        known = number < len(layers)
        layer = LAYERS[layers[number]] if known else None
        devices[number] = HotDevice(
            len(layer.tar) if layer else trace.sizes[number], page_root(layer.layer.blob) if layer else None
        )
    prover, at, found = Prover(devices, bundle[: trace.proofs]), trace.proofs, {}
    for plan, frame in zip(FramePlans(trace), trace.frames, strict=True):
        opened = prover.open(bundle[at : at + frame.size], frame, plan)
        assert [part for part, _ in opened] == list(plan.given)
        at += frame.size
        for part, pages in opened:
            for place in range(part.count):
                key = layers[part.device], part.first + place
                found[key] = bytes(pages[place * PAGE_SIZE : (place + 1) * PAGE_SIZE])
    return found


RANGES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, PAGES - 1), st.integers(1, 90)), min_size=1, max_size=20)


@given(RANGES, st.permutations(range(4)), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_an_image_is_given_the_pages_of_its_own_layers_and_no_others(drawn, order, count):
    ranges = merge([[Pages(device, first, min(size, PAGES - first)) for device, first, size in drawn]])
    trace, bundle = recorded([0, 1, 2], ranges)
    layers = order[:count]
    want = {
        (each.device, page): pages_of(each.device, page, 1)
        for each in ranges
        if each.device in layers
        for page in range(each.first, each.first + each.count)
    }
    if not want:
        with pytest.raises(InvalidTrace, match="other layers"):
            trace.on([DIGESTS[number] for number in layers])
        return
    there = trace.on([DIGESTS[number] for number in layers])

    assert given_by(there, bundle, layers) == want
    assert {(layers[each.device], each.first) for each in there.own} <= set(want)
    assert sum(each.count for each in there.own) == len(want)


def test_without_the_sizes_of_what_is_not_the_images_there_is_no_bundle():
    trace, _ = recorded([0, 1], (Pages(0, 3, 4), Pages(1, 0, 2)))
    there = replace(trace, sizes=()).on([DIGESTS[2], DIGESTS[1]])

    assert there.ranges == there.own == (Pages(1, 0, 2),)
    assert there.frames == ()
    assert there.strangers == 0


def test_an_image_with_one_layer_twice_gets_its_pages_once():
    trace, bundle = recorded([0, 1], (Pages(0, 3, 4), Pages(1, 0, 2)))
    there = trace.on([DIGESTS[1], DIGESTS[0], DIGESTS[0]])

    assert sum(each.count for each in there.own) == 6
    assert len(given_by(there, bundle, [1, 0, 0])) == 6
