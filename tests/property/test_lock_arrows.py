"""What the arrow from a declaration to a lock promises, for any input."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from envbuilder.digest import Digest
from envbuilder.lock.codec import dump, load
from envbuilder.lock.model import CudaAxis, Interpreter, Lock, LockedFile, Parent, Partition
from envbuilder.lock.partition import MAX_LAYERS, assign
from envbuilder.oci.platform import Platform
from envbuilder.testing.locks import SMALL, deb, wheel

names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,4})?", fullmatch=True)
sizes = st.integers(0, 8_000_000) | st.integers(0, 900_000_000)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
wheel_sets = st.dictionaries(names, sizes, max_size=90).map(lambda d: [wheel(n, size=s) for n, s in d.items()])
deb_sets = st.dictionaries(names, sizes, max_size=40).map(
    lambda d: [deb(n, size=s, source=n[:3]) for n, s in d.items() if len(n) > 1]
)


def where(done):
    return {(type(a), a.name): a.layer for a in (*done.wheels, *done.debs)}


def lock_of(done, name="x"):
    return replace(
        SMALL, name=name, layers=done.layers, wheels=done.wheels, debs=done.debs, partition=done.partition, parent=None
    )


@given(wheel_sets, deb_sets, st.randoms(use_true_random=False))
def test_the_order_of_input_changes_no_layer(wheels, debs, rng):
    shuffled = [wheels[:], debs[:]]
    for artifacts in shuffled:
        rng.shuffle(artifacts)

    assert assign("x", wheels, debs) == assign("x", *shuffled)


@given(wheel_sets, deb_sets, wheel_sets)
def test_adding_packages_moves_no_other(wheels, debs, more):
    first = assign("x", wheels, debs)
    known = {w.name for w in wheels}
    second = assign("x", [*wheels, *(w for w in more if w.name not in known)], debs, existing=lock_of(first))

    assert where(first).items() <= where(second).items()


@given(wheel_sets, deb_sets, wheel_sets)
def test_the_budget_holds_and_every_layer_is_used(wheels, debs, more):
    parent = lock_of(assign("p", wheels, debs), "p")
    known = {w.name for w in wheels}
    for done in (
        assign("x", wheels, debs),
        assign("x", [*wheels, *(w for w in more if w.name not in known)], debs, parent=parent),
    ):
        used = {artifact.layer for artifact in (*done.wheels, *done.debs)}
        assert len(done.layers) <= max(MAX_LAYERS, len(parent.layers) + 16)
        assert len(set(done.layers)) == len(done.layers)
        assert used <= set(done.layers)
        assert set(done.layers) - used <= {"x/top", "p/top"}


#: What TOML can say.
MOST = (1 << 63) - 1
digests = st.binary(max_size=8).map(Digest.of)
locks = st.builds(
    Lock,
    name=st.just("x"),
    version=texts,
    platform=st.sampled_from([Platform("x86_64"), Platform("aarch64")]),
    spec_digest=digests,
    python=st.integers(8, 20).map(lambda minor: Interpreter(version=f"3.{minor}", tag=f"cp3{minor}")),
    suite=texts,
    base=st.lists(texts, max_size=3).map(tuple),
    glibc=texts,
    layers=st.just(("x/a", "x/b", "x/top")),
    wheels=wheel_sets.map(
        lambda ws: tuple(replace(w, layer="x/a") for w in sorted(ws, key=lambda w: w.name)),
    ),
    debs=deb_sets.map(lambda ds: tuple(replace(d, layer="x/b") for d in sorted(ds, key=lambda d: d.name))),
    files=st.lists(
        st.builds(LockedFile, source=names, path=names, mode=st.sampled_from([0o644, 0o755, 0o4755]), digest=digests),
        max_size=2,
    ).map(tuple),
    env=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), texts, max_size=4),
    start=st.lists(st.lists(texts, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    cuda=st.none() | st.builds(CudaAxis, toolkit=texts, minimum_driver=texts, accelerators=st.just(("9.0",))),
    parent=st.none() | st.builds(Parent, name=names, lock_digest=digests),
    partition=st.builds(
        Partition,
        threshold=st.integers(0, MOST),
        wheel_buckets=st.integers(1, MOST),
        deb_buckets=st.integers(1, MOST),
    ),
)


@given(locks)
def test_any_lock_comes_back_as_it_went(lock):
    data = dump(lock)

    assert load(data, source="x") == lock
    assert dump(load(data, source="x")) == data
