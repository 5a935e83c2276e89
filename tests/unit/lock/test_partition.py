"""Artefacts to layers."""

from collections import Counter
from dataclasses import replace

import pytest

from envbuilder.lock.model import Lock, Partition, Wheel
from envbuilder.lock.partition import MAX_LAYERS, Assignment, TooManyLayers, assign
from envbuilder.testing.locks import SMALL, deb, wheel

MB = 1_000_000


def lock_of(name: str, done: Assignment) -> Lock:
    return replace(
        SMALL, name=name, layers=done.layers, wheels=done.wheels, debs=done.debs, partition=done.partition, parent=None
    )


def layer_by_name(done: Assignment) -> dict[str, str]:
    return {artifact.name: artifact.layer for artifact in (*done.wheels, *done.debs)}


def platform_wheel(name: str, size: int) -> Wheel:
    return replace(wheel(name, size=size), file=f"{name}-1.0-cp313-cp313-manylinux_2_28_x86_64.whl")


def test_a_big_artefact_has_a_layer_of_its_own():
    done = assign("x", [wheel("torch", size=500 * MB), wheel("six")], [deb("gcc", size=20 * MB)])

    assert layer_by_name(done) == {"torch": "x/torch", "six": "x/wheels-00", "gcc": "x/gcc.deb"}


def test_wheels_of_one_release_share_a_layer_and_one_that_moves_alone_does_not():
    wheels = [wheel("mlflow", size=9 * MB), wheel("mlflow-skinny", size=9 * MB), wheel("mlflow-tracing")]
    done = assign("x", [*wheels, wheel("mlflow-plugin", size=9 * MB)], [])

    assert done.layers == ("x/mlflow-plugin", "x/mlflow.set-0", "x/top")


def test_a_large_release_is_dealt_to_layers_of_about_a_size():
    sizes = {
        "nvidia-cublas": 405,
        "nvidia-cusolver": 228,
        "nvidia-cufft": 218,
        "nvidia-cusparse": 151,
        "nvidia-nvtx": 1,
    }
    cuda = [platform_wheel(name, size * MB) for name, size in sizes.items()]
    done = assign("x", [*cuda, platform_wheel("torch", 900 * MB)], [])
    load = Counter()
    for placed in done.wheels:
        load[placed.layer] += placed.size

    assert load == {"x/cuda.set-0": 556 * MB, "x/cuda.set-1": 447 * MB, "x/torch": 900 * MB}


def test_a_release_that_would_be_most_of_the_image_is_not_put_together():
    done = assign("x", [wheel("nvidia-cublas", size=300 * MB), wheel("nvidia-cufft", size=200 * MB)], [deb("libc6")])

    assert layer_by_name(done)["nvidia-cufft"] == "x/nvidia-cufft"


def test_a_newcomer_of_a_release_joins_the_others_if_it_is_small_and_never_takes_their_layer_if_it_is_not():
    first = assign("x", [wheel("mlflow", size=9 * MB), wheel("mlflow-skinny", size=9 * MB)], [])
    small = assign("x", [*first.wheels, wheel("mlflow-tracing")], [], existing=lock_of("x", first))
    parts = [wheel("mlflow-tracing", size=9 * MB)]
    large = assign("x", [*first.wheels, *parts], [], existing=lock_of("x", first))

    assert layer_by_name(small)["mlflow-tracing"] == "x/mlflow.set-0"
    assert layer_by_name(large)["mlflow-tracing"] == "x/mlflow-tracing"


def test_a_big_release_of_debs_has_a_layer_and_no_wheel_can_take_its_name():
    debs = [deb(name, size=4 * MB, source="gcc-14") for name in ("gcc", "cpp")]
    done = assign("x", [], [*debs, deb("libc6")])

    assert layer_by_name(done) == {"gcc": "x/gcc-14.set-0.deb", "cpp": "x/gcc-14.set-0.deb", "libc6": "x/debs-00"}


def test_a_pure_wheel_counts_as_the_layer_that_it_becomes():
    done = assign("x", [wheel("a", size=3 * MB), platform_wheel("b", 3 * MB)], [])

    assert layer_by_name(done) == {"a": "x/a", "b": "x/wheels-00"}


def test_layers_are_in_order_debs_then_wheels_then_the_computed_one():
    done = assign("x", [wheel("torch", size=9 * MB), wheel("six")], [deb("gcc", size=9 * MB), deb("libc6")])

    assert done.layers == ("x/debs-00", "x/gcc.deb", "x/torch", "x/wheels-00", "x/top")


def test_packages_of_one_debian_source_share_a_bucket():
    debs = [deb(f"p{i}", size=MB // 2, source="util-linux") for i in range(9)] + [
        deb(f"q{i}", size=MB) for i in range(9)
    ]
    done = assign("x", [], debs)

    assert done.partition.deb_buckets == 3
    assert len({d.layer for d in done.debs if d.source == "util-linux"}) == 1


@pytest.mark.parametrize(("total_mb", "buckets"), [(0, 1), (1, 1), (2, 2), (5, 4), (17, 13), (300, 32)])
def test_a_small_environment_gets_few_buckets(total_mb, buckets):
    done = assign("x", [wheel(f"w{i}", size=MB // 2) for i in range(2 * total_mb)], [])

    assert done.partition.wheel_buckets == buckets


def test_buckets_fill_evenly():
    done = assign("x", [wheel(f"w{i}", size=300_000 + i * 15_000) for i in range(100)], [])
    load = Counter()
    for placed in done.wheels:
        load[placed.layer] += placed.size

    assert len(load) == 32
    assert max(load.values()) < 1.2 * min(load.values())


def test_a_new_package_of_a_debian_source_joins_the_others():
    first = assign("x", [], [deb(f"p{i}", size=MB) for i in range(16)])
    more = [deb(f"q{i}", size=MB // 2, source="p7") for i in range(5)]
    second = assign("x", [], [*first.debs, *more], existing=lock_of("x", first))

    assert len({d.layer for d in second.debs if d.source == "p7"}) == 1


@pytest.mark.parametrize("name", ["top", "wheels-01", "debs-3"])
def test_a_package_never_takes_the_id_of_another_layer(name):
    done = assign("x", [wheel(name, size=9 * MB)], [])

    assert done.layers == (f"x/{name}.whl", "x/top")


def test_what_stays_keeps_its_layer_though_its_size_changes():
    first = assign("x", [wheel("a", size=9 * MB), wheel("b")], [])
    second = assign("x", [wheel("a", "2", 1), wheel("b", "2", 9 * MB)], [], existing=lock_of("x", first))

    assert layer_by_name(second) == {"a": "x/a", "b": "x/wheels-00"}


def test_a_package_that_becomes_a_giant_leaves_its_bucket_and_the_others_stay():
    first = assign("x", [wheel("a"), wheel("b")], [])
    grown = [wheel("a", "2", 500 * MB), wheel("b")]
    second = assign("x", grown, [], existing=lock_of("x", first))
    third = assign("x", grown, [], existing=lock_of("x", second))

    assert layer_by_name(second) == {"a": "x/a", "b": "x/wheels-00"} == layer_by_name(third)


def test_a_layer_that_nobody_needs_goes():
    first = assign("x", [wheel("a", size=9 * MB), wheel("b")], [])
    second = assign("x", [wheel("b")], [], existing=lock_of("x", first))

    assert second.layers == ("x/wheels-00", "x/top")


def test_a_child_starts_with_all_layers_of_its_parent():
    parent = lock_of("p", assign("p", [wheel("a", size=9 * MB), wheel("b")], [deb("libc6")]))
    child = assign("x", [*parent.wheels, wheel("c"), wheel("d", size=9 * MB)], parent.debs, parent=parent)

    assert child.layers == (*parent.layers, "x/d", "x/wheels-00", "x/top")
    assert layer_by_name(child) | layer_by_name(assign("p", parent.wheels, parent.debs)) == layer_by_name(child)


def test_the_threshold_grows_until_the_layers_fit():
    done = assign("x", [wheel(f"w{i:03}", size=(5 + i) * MB) for i in range(200)], [])

    assert len(done.layers) <= MAX_LAYERS
    assert done.wheels[-1].layer == "x/w199"  # the largest stays alone
    assert done.wheels[0].layer.startswith("x/wheels-")


def test_a_first_lock_leaves_room_for_packages_to_come():
    first = assign("x", [wheel(f"w{i:03}", size=9 * MB) for i in range(200)], [])
    second = assign(
        "x", [*first.wheels, wheel("new", size=900 * MB)], [], existing=lock_of("x", first), max_layers=MAX_LAYERS
    )

    assert layer_by_name(second)["new"] == "x/new"


def test_a_big_newcomer_goes_to_a_bucket_when_there_is_no_room():
    first = assign("x", [wheel("a", size=9 * MB), wheel("b")], [])
    second = assign("x", [*first.wheels, wheel("c", size=9 * MB)], [], existing=lock_of("x", first), max_layers=3)

    assert layer_by_name(second) == {"a": "x/a", "b": "x/wheels-00", "c": "x/wheels-00"}


def test_a_child_of_a_parent_that_used_up_the_layers_has_room_still():
    parent = replace(SMALL, name="p", layers=(*tuple(f"p/{i}" for i in range(59)), "p/top"), wheels=(), debs=())
    done = assign("x", [wheel(f"w{i}", size=9 * MB) for i in range(9)], [], parent=parent)

    assert len(done.layers) == 60 + 9 + 1


def test_a_chain_of_parents_that_leaves_no_room_is_refused():
    parent = replace(SMALL, name="p", layers=(*tuple(f"p/{i}" for i in range(119)), "p/top"), wheels=(), debs=())

    with pytest.raises(TooManyLayers, match="the parent or the base alone has 120"):
        assign("x", [wheel("a")], [], parent=parent)


def test_the_rule_of_the_lock_holds_for_newcomers():
    existing = replace(SMALL, wheels=(), debs=(), partition=Partition(threshold=100, wheel_buckets=2, deb_buckets=1))
    done = assign("x", [wheel("a", size=200), wheel("b", size=50)], [], existing=existing)

    assert done.partition == existing.partition
    assert layer_by_name(done)["a"] == "x/a"
