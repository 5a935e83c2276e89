"""A whole lock, from a small index; the Debian part is kept from an existing lock, so apt is not needed."""

import os
from dataclasses import replace

import pytest

from envbuilder.errors import SpecError
from envbuilder.lock.archives import NoMirror
from envbuilder.lock.below import NoInterpreter, OtherBase
from envbuilder.lock.changes import changes
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import digest, dump, load
from envbuilder.lock.machine import Machine, UnknownIndex
from envbuilder.lock.make import PlatformNotDeclared, UnknownUpgrade, UnknownWheel, make_lock, spread
from envbuilder.lock.model import BaseImage, BaseLayer, Changed, ForeignSystem
from envbuilder.lock.python import Unsatisfiable
from envbuilder.lock.settings import python_indexes
from envbuilder.oci.platform import Platform
from envbuilder.proc import run
from envbuilder.spec.model import Base, EnvSpec, Pins, Replacement, System
from envbuilder.testing.index import PackageIndex
from envbuilder.testing.locks import SMALL, deb

pytestmark = pytest.mark.slow

X86 = Platform("x86_64")
SPEC = EnvSpec(name="x", version="1", python="3.13", base=Base(suite="trixie", packages=("ca-certificates",)))
START = replace(
    SMALL,
    spec_digest=SPEC.digest,
    wheels=(),
    debs=(deb("libc6", "2.41-12", layer="x/debs-00"), deb("python3.13", "3.13.5-2", layer="x/debs-00")),
    layers=("x/debs-00", "x/top"),
)


@pytest.fixture
def index():
    with PackageIndex() as server:
        for version in ("1", "2"):
            server.add("a", version)
            server.add("b", version, requires=["a"])
        yield server


@pytest.fixture
def machine(tmp_path, index):
    def only_uv(argv, **options):
        assert "apt" not in str(argv[0])
        return run(argv, **options)

    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_DEFAULT_INDEX": index.url,
    }
    return Machine(runner=only_uv, environment=environment, indexes=python_indexes(environment, {}))


def versions(lock):
    return {wheel.name: wheel.version for wheel in lock.wheels}


def test_a_changed_declaration_is_locked_without_apt_when_the_base_stays(machine):
    spec = replace(SPEC, requires=("b",), env={"A": "1"}, start=(("true",),))
    lock = make_lock(spec, X86, machine=machine, existing=START)

    assert versions(lock) == {"a": "2", "b": "2"}
    assert lock.debs == START.debs
    assert (lock.env, lock.start, lock.glibc, lock.python.tag) == ({"A": "1"}, (("true",),), "2.41", "cp313")
    assert stale_reasons(spec, X86, lock) == ()


def test_the_same_inputs_give_the_same_bytes(machine):
    spec = replace(SPEC, requires=("b",))

    assert dump(make_lock(spec, X86, machine=machine, existing=START)) == dump(
        make_lock(spec, X86, machine=machine, existing=START)
    )


def test_no_host_name_enters_a_lock(machine):
    assert b"127.0.0.1" not in dump(make_lock(replace(SPEC, requires=("b",)), X86, machine=machine, existing=START))


def test_a_fresh_lock_is_given_back_without_any_program(machine):
    def never(*_args, **_options):
        pytest.fail("started a program")

    assert make_lock(SPEC, X86, machine=replace(machine, runner=never), existing=START) is START


def test_one_package_is_upgraded_and_no_other(machine):
    old = make_lock(replace(SPEC, requires=("a==1", "b==1")), X86, machine=machine, existing=START)
    spec = replace(SPEC, requires=("a", "b"))

    assert versions(make_lock(spec, X86, machine=machine, existing=old)) == {"a": "1", "b": "1"}
    new = make_lock(spec, X86, machine=machine, existing=old, upgrade_packages=["B"])
    assert versions(new) == {"a": "1", "b": "2"}
    assert changes(old, new) == ("b 1 -> 2",)


def test_a_package_that_is_not_locked_cannot_be_upgraded(machine):
    with pytest.raises(UnknownUpgrade, match="not in the lock: zzz"):
        make_lock(SPEC, X86, machine=machine, existing=START, upgrade_packages=["zzz"])


def test_a_child_has_all_of_its_parent_and_its_own(machine):
    parent = make_lock(
        replace(SPEC, requires=("a==1",), env={"A": "1", "B": "1"}), X86, machine=machine, existing=START
    )
    spec = EnvSpec(name="y", version="1", extends="x", requires=("b",), env={"B": "2"})
    child = make_lock(spec, X86, machine=machine, parent=parent)

    assert versions(child) == {"a": "1", "b": "2"}
    assert child.layers == (*parent.layers, "y/wheels-00", "y/top")
    assert (child.debs, child.suite, child.base) == (parent.debs, parent.suite, parent.base)
    assert child.env == {"A": "1", "B": "2"}
    assert child.parent
    assert child.parent.lock_digest == digest(parent)


def test_a_child_keeps_its_parents_versions_unless_asked_otherwise(machine):
    parent = make_lock(replace(SPEC, requires=("a==1",)), X86, machine=machine, existing=START)
    spec = EnvSpec(name="y", version="1", extends="x", requires=("a", "b"))
    child = make_lock(spec, X86, machine=machine, parent=parent)
    upgraded = make_lock(spec, X86, machine=machine, existing=child, parent=parent, upgrade_packages=["a"])
    later = make_lock(replace(spec, version="2"), X86, machine=machine, existing=upgraded, parent=parent)
    demanding = make_lock(replace(spec, requires=("a>1",)), X86, machine=machine, existing=child, parent=parent)

    assert versions(child)["a"] == "1"
    assert child.parent.changed == ()
    for changed in (upgraded, later, demanding):
        assert versions(changed)["a"] == "2"
        assert changed.parent.changed == (Changed(name="a", before="1", after="2"),)
        assert changed.layers[: len(parent.layers) + 1] == (*parent.layers, "y/removed")
        assert {wheel.layer for wheel in changed.wheels if wheel.name == "a"} == {"y/wheels-00"}


def test_a_child_is_locked_after_its_parent(machine):
    with pytest.raises(SpecError, match="extends 'x', which has no lock"):
        make_lock(EnvSpec(name="y", version="1", extends="x"), X86, machine=machine)


def test_only_declared_platforms_are_locked(machine):
    with pytest.raises(PlatformNotDeclared, match="want one of linux/x86_64, got linux/aarch64"):
        make_lock(SPEC, Platform("aarch64"), machine=machine)


def test_a_role_without_an_index_is_told(machine):
    with pytest.raises(UnknownIndex, match="no index is configured for corp") as caught:
        make_lock(replace(SPEC, extra_indexes=("corp",)), X86, machine=machine, existing=START)
    assert caught.value.exit_code == NoMirror.exit_code


def test_debian_packages_without_the_interpreter_are_refused(machine):
    spec = replace(SPEC, requires=("a",))

    with pytest.raises(NoInterpreter, match=r"bring no python3\.13"):
        make_lock(spec, X86, machine=machine, existing=replace(START, debs=START.debs[:1]))


def test_changes_tell_what_came_went_and_moved():
    old = replace(START, env={"A": "1"})
    new = replace(old, debs=(deb("bash", "5"), replace(START.debs[0], version="2.42-1")), glibc="2.42")

    assert changes(old, new) == ("+ bash 5", "libc6 2.41-12 -> 2.42-1", "- python3.13 3.13.5-2", "glibc changed")
    assert changes(None, replace(START, debs=START.debs[:1])) == ("+ libc6 2.41-12",)
    child = replace(START, debs=(*START.debs[:1], deb("bash", "5")), wheels=())
    assert changes(None, child, replace(START, debs=START.debs[:1])) == ("1 package as in x", "+ bash 5")
    assert changes(None, START, START) == (f"{len(START.debs)} packages as in x",)
    assert changes(old, replace(old, spec_digest=digest(old))) == ("declaration changed",)
    assert changes(old, old) == ()


def test_a_system_that_is_made_elsewhere_needs_no_debian_and_gives_its_versions(machine):
    base = Base(system=System(name="ubuntu-24.04", interpreter="3.13.1", glibc="2.39"))
    spec = replace(SPEC, base=base, requires=("a",))
    lock = make_lock(spec, X86, machine=machine)
    child = make_lock(EnvSpec(name="y", version="1", extends="x", requires=("b",)), X86, machine=machine, parent=lock)

    assert (lock.suite, lock.base, lock.debs, lock.glibc) == ("", (), (), "2.39")
    assert lock.system == child.system == ForeignSystem(name="ubuntu-24.04", interpreter="3.13.1")
    assert child.glibc == "2.39"
    with pytest.raises(SpecError, match=r"base\.packages: ubuntu-24\.04 below x is not made here"):
        make_lock(
            EnvSpec(name="y", version="1", extends="x", base=Base(packages=("git",))), X86, machine=machine, parent=lock
        )


IMAGE = "registry.example/base:1"
LAYER = BaseLayer(
    digest=digest(SMALL), size=1, media_type="application/vnd.oci.image.layer.v1.tar", diff_id=digest(SMALL)
)


def over(machine, *, interpreter="3.13.1", glibc="2.39", number=1):
    """``machine``, whose registry has a base at ``IMAGE``; and the list of what was asked of it."""
    asked = []

    def base_of(image, python, platform):
        asked.append((image, python, str(platform)))
        base = BaseImage(
            manifest=LAYER.digest, config=LAYER.digest, python="/usr/bin/python3.13", layers=(LAYER, LAYER)
        )
        pinned = f"registry.example/base@sha256:{number:064}"
        return ForeignSystem(name="ubuntu-24.04", interpreter=interpreter, image=pinned, base=base), glibc

    return replace(machine, base_of=base_of), asked


def test_a_base_is_read_once_and_stays_until_it_is_asked_for_anew(machine):
    spec = replace(SPEC, base=Base(system=System(image=IMAGE)), requires=("a",))
    host, asked = over(machine)
    lock = make_lock(spec, X86, machine=host)
    more = replace(spec, requires=("a", "b"))
    moved, _ = over(machine, number=2)
    kept = make_lock(more, X86, machine=moved, existing=lock)

    assert asked == [(IMAGE, "3.13", "linux/x86_64")]
    assert (lock.system.asked, lock.system.image[-2:], lock.glibc, lock.bytecode) == (IMAGE, "01", "2.39", True)
    assert lock.layers == ("x/base-00", "x/base-01", "x/wheels-00", "x/top")
    assert load(dump(lock), source="x") == lock
    assert (kept.system, versions(kept)) == (lock.system, {"a": "2", "b": "2"})
    assert make_lock(more, X86, machine=moved, existing=kept, upgrade=True).system.image[-2:] == "02"
    assert changes(lock, replace(lock, system=moved.base_of(IMAGE, "3.13", X86)[0])) == ("system changed",)
    child = EnvSpec(name="y", version="1", extends="x", requires=("b",))
    assert make_lock(child, X86, machine=machine, parent=lock).layers == (*lock.layers, "y/wheels-00", "y/top")
    assert spread(lock, None).layers == lock.layers


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"interpreter": "3.13.2"}, r"x: base\.interpreter: want 3\.13\.2, registry\.example/base@.* has 3\.13\.1"),
        ({"name": "debian-13"}, r"x: base\.system: want debian-13, .* has ubuntu-24\.04"),
        ({"glibc": "2.40"}, r"x: base\.glibc: want 2\.40 or newer, .* has 2\.39"),
    ],
)
def test_a_base_that_is_not_what_the_declaration_says_is_refused(machine, said, message):
    with pytest.raises(OtherBase, match=message):
        make_lock(replace(SPEC, base=Base(system=System(image=IMAGE, **said))), X86, machine=over(machine)[0])


def test_wheels_are_chosen_for_the_glibc_that_the_declaration_asks_for(machine):
    spec = replace(SPEC, base=Base(system=System(image=IMAGE, glibc="2.17")), requires=("a",))

    assert make_lock(spec, X86, machine=over(machine)[0]).glibc == "2.17"


def test_what_a_child_leaves_out_of_its_parent_is_hidden_and_listed(machine):
    parent = make_lock(replace(SPEC, requires=("a==1", "b")), X86, machine=machine, existing=START)
    gone = (Replacement(name="b", instead="", reason="not wanted"),)
    child = make_lock(EnvSpec(name="y", version="1", extends="x", replaced=gone), X86, machine=machine, parent=parent)

    assert versions(child) == {"a": "1"}
    assert child.layers == (*parent.layers, "y/removed", "y/top")
    assert child.parent.changed == (Changed(name="b", before="2", after=""),)
    assert [each.name for each in child.substitutions] == ["b"]


def test_a_pinned_local_version_comes_from_its_index_and_from_the_public_one_without_it(machine, index):
    index.add("torch", "1")
    index.add("cuda-lib", "1")
    pins = Pins(versions=(("torch", "1+cu129"),), local={"cu129": "pytorch-cu129"}, public=True)
    base = Base(system=System(name="ubuntu-24.04", interpreter="3.13.1", glibc="2.39"))
    spec = replace(SPEC, base=base, requires=(), pins=pins)
    with PackageIndex() as builds:
        labelled = builds.add("torch", "1+cu129", requires=["cuda-lib"])
        builds.add("cuda-lib", "66.6")  # must not come: only torch is bound to this index
        known = replace(machine, indexes=python_indexes(machine.environment, {"pytorch-cu129": builds.url}))
        there = make_lock(spec, X86, machine=known)
        without = make_lock(spec, X86, machine=machine)

    assert versions(there) == {"cuda-lib": "1", "torch": "1+cu129"}
    assert {(wheel.name, wheel.index) for wheel in there.wheels} == {
        ("cuda-lib", "default"),
        ("torch", "pytorch-cu129"),
    }
    assert there.wheels[1].digest == labelled.digest
    assert there.substitutions == ()
    assert versions(without) == {"torch": "1"}
    assert [(each.wanted, each.got) for each in without.substitutions] == [("1+cu129", "1")]


def test_a_wrong_record_is_allowed_by_name_and_a_child_inherits_that(machine):
    spec = replace(SPEC, requires=("a", "b"), allow_records=("a",))
    parent = make_lock(spec, X86, machine=machine, existing=START)
    child = make_lock(EnvSpec(name="y", version="1", extends="x", requires=("b",)), X86, machine=machine, parent=parent)

    assert [wheel.recorded for wheel in parent.wheels] == [False, True]
    assert [wheel.recorded for wheel in child.wheels] == [False, True]  # as it lies in the parent's layer
    assert load(dump(parent), source="x") == parent
    with pytest.raises(UnknownWheel, match="b is the parent's"):
        make_lock(
            EnvSpec(name="y", version="1", extends="x", allow_records=("b",)), X86, machine=machine, parent=parent
        )
    again = make_lock(replace(spec, allow_records=()), X86, machine=machine, existing=parent)
    assert all(wheel.recorded for wheel in again.wheels)


def test_files_that_are_left_out_are_in_the_lock_and_a_package_that_is_not_there_is_told(machine):
    spec = replace(SPEC, requires=("a",), leave_out={"a": ("a.py",)})
    lock = make_lock(spec, X86, machine=machine, existing=START)

    assert lock.wheels[0].without == ("a.py",)
    assert load(dump(lock), source="x") == lock
    with pytest.raises(UnknownWheel, match="leave-out: the lock has no Python package zzz"):
        make_lock(replace(SPEC, requires=("a",), leave_out={"zzz": ("a",)}), X86, machine=machine, existing=START)


def test_what_is_not_compiled_is_said_by_the_lock_and_inherited(machine):
    parent = make_lock(replace(SPEC, requires=("a",), bytecode=False), X86, machine=machine, existing=START)
    child = make_lock(EnvSpec(name="y", version="1", extends="x"), X86, machine=machine, parent=parent)

    assert (START.bytecode, parent.bytecode, child.bytecode) == (True, False, False)
    assert load(dump(parent), source="x") == parent
    assert "bytecode changed" in changes(START, parent)


@pytest.fixture
def extra(machine):
    """A second index and a machine that knows it; it has another build of b, and an a of its own."""
    with PackageIndex() as server:
        server.add("b", "2+cu130", requires=["a"])
        server.add("a", "9")
        yield server, replace(machine, indexes=python_indexes(machine.environment, {"extra": server.url}))


def test_a_child_takes_what_its_parent_has_from_the_parents_index(extra, index):
    _, machine = extra
    parent = make_lock(replace(SPEC, requires=("b",), sources={"b": "extra"}), X86, machine=machine, existing=START)
    index.add("c", "1", requires=["b"])

    child = make_lock(EnvSpec(name="y", version="1", extends="x", requires=("c",)), X86, machine=machine, parent=parent)

    assert versions(parent) == {"a": "2", "b": "2+cu130"}
    assert versions(child) == {"a": "2", "b": "2+cu130", "c": "1"}
    assert child.parent.changed == ()


def test_an_index_that_a_child_adds_gives_it_no_package_of_its_parent_that_it_does_not_name(extra):
    _, machine = extra
    parent = make_lock(replace(SPEC, requires=("b",)), X86, machine=machine, existing=START)

    def child(*requires):
        spec = EnvSpec(name="y", version="1", extends="x", requires=requires, extra_indexes=("extra",))
        return versions(make_lock(spec, X86, machine=machine, parent=parent))

    assert child() == {"a": "2", "b": "2"}
    assert child("b==2+cu130") == {"a": "2", "b": "2+cu130"}


def test_a_child_that_wants_a_package_from_elsewhere_says_so(extra):
    _, machine = extra
    parent = make_lock(replace(SPEC, requires=("b",), sources={"b": "extra"}), X86, machine=machine, existing=START)
    spec = EnvSpec(name="y", version="1", extends="x", requires=("b==1",))

    with pytest.raises(Unsatisfiable) as refused:
        make_lock(spec, X86, machine=machine, parent=parent)
    child = make_lock(replace(spec, sources={"b": "default"}), X86, machine=machine, parent=parent)

    assert refused.value.hint.startswith("b comes from the index 'extra', as in x")
    assert versions(child)["b"] == "1"


def test_a_child_whose_parent_has_an_index_that_this_machine_lacks_says_so(extra, machine):
    parent = make_lock(replace(SPEC, requires=("b",), sources={"b": "extra"}), X86, machine=extra[1], existing=START)

    with pytest.raises(UnknownIndex, match="y: no index is configured for extra"):
        make_lock(EnvSpec(name="y", version="1", extends="x", requires=("a",)), X86, machine=machine, parent=parent)


def test_a_child_does_not_bring_back_what_its_parent_keeps_out_or_replaces(machine):
    gone, other = (
        Replacement(name="a", instead="", reason="not wanted"),
        Replacement(name="a", instead="a==1", reason="old"),
    )
    spec = EnvSpec(name="y", version="1", extends="x")
    for replacement, there in ((gone, {"b": "2"}), (other, {"a": "1", "b": "2"})):
        above = replace(SPEC, requires=("b",), replaced=(replacement,))
        parent = make_lock(above, X86, machine=machine, existing=START)
        child = make_lock(spec, X86, machine=machine, parent=parent, lineage=(above,))
        asking = make_lock(replace(spec, requires=("a==2",)), X86, machine=machine, parent=parent, lineage=(above,))

        assert versions(parent) == versions(child) == there
        assert [each.name for each in child.substitutions] == ["a"]
        assert versions(asking) == {"a": "2", "b": "2"}


def test_a_childs_own_package_comes_from_where_its_parent_binds_the_name(extra, index):
    server, machine = extra
    index.add("corp-new", "9")  # whoever can publish there
    server.add("corp-new", "1")
    above = replace(SPEC, requires=("a",), sources={"corp-*": "extra"})
    parent = make_lock(above, X86, machine=machine, existing=START)
    spec = EnvSpec(name="y", version="1", extends="x", requires=("corp-new",))

    child = make_lock(spec, X86, machine=machine, parent=parent, lineage=(above,))
    loose = make_lock(replace(spec, sources={"*": "default"}), X86, machine=machine, parent=parent, lineage=(above,))

    assert versions(child)["corp-new"] == "1"
    assert versions(loose)["corp-new"] == "9"
