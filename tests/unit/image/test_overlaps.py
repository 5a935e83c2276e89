"""Packages of different layers at one path, looked at once."""

import hashlib
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.image.overlaps import check_here, check_overlaps, check_shared
from envbuilder.layer.claims import Conflict
from envbuilder.layer.deb import InPrefix, deb_entries
from envbuilder.layer.debian.maintainer import UnknownScript
from envbuilder.layer.debian.overlaps import SharedPath
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import Compilation, DebPlan, WheelPlan
from envbuilder.layer.removal import RemovalPlan
from envbuilder.layer.tree import Placed, directory, file, symlink, whiteout
from envbuilder.lock.model import Wheel
from envbuilder.oci import media_types
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.debs import deb_of, make_deb
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL


@dataclass
class Files:
    """An ArtifactSource that keeps what was asked for."""

    folder: object
    asked: list = field(default_factory=list)

    def file(self, artifact):
        self.asked.append(artifact.name)
        return self.folder / artifact.file


@pytest.fixture
def world(tmp_path):
    """Three layers of a package each; two have other bytes at the same path."""
    plans, layers = [], {}
    for name, path in (("a", "both.py"), ("b", "both.py"), ("c", "c.py")):
        file, data = f"{name}-1.0-py3-none-any.whl", make_wheel(name, files={path: name.encode()})
        (tmp_path / file).write_bytes(data)
        wheel = Wheel(name=name, version="1.0", file=file, digest=Digest.of(data), size=len(data), layer="")
        compilation = Compilation(python=SMALL.python, platform=SMALL.platform, packages=None)
        plan = WheelPlan(id=f"x/{name}", wheels=(wheel,), compilation=compilation)
        plans.append(plan)
        layers[plan.id] = Layer(
            id=plan.id,
            blob=describe(data, media_types.OCI_LAYER_TAR_ZSTD),
            diff_id=Digest.of(data),
            plan_key=plan.key,
            tar_size=1,
            placed=(Placed(path=path, mode=0o100644, size=1), Placed(path="opt", mode=0o40755)),
        )
    lock = replace(SMALL, wheels=tuple(each.wheels[0] for each in plans))
    return lock, plans, layers, Files(tmp_path)


def test_two_packages_at_one_path_are_a_conflict_and_only_they_are_read(world):
    lock, plans, layers, files = world

    with pytest.raises(Conflict, match=r"both\.py: b and a"):
        check_overlaps(lock, plans, layers, files, agreed=frozenset())

    assert {*files.asked} == {"a", "b"}


@pytest.mark.parametrize("which", [0, 1], ids=["the first is new", "the second is new"])
def test_a_layer_that_is_new_is_held_against_those_that_agreed(world, which):
    lock, plans, layers, files = world
    agreed = {each.key for each in plans if each is not plans[which]}

    with pytest.raises(Conflict):
        check_overlaps(lock, plans, layers, files, agreed=agreed)


def test_layers_that_an_image_had_together_are_not_looked_at_again(world):
    lock, plans, layers, files = world

    check_overlaps(lock, plans, layers, files, agreed={plan.key for plan in plans})

    assert files.asked == []


def test_a_file_in_one_layer_and_a_directory_in_another_are_a_conflict(world, tmp_path):
    lock, plans, layers, files = world
    plan, data = plans[2], make_wheel("c", files={"both.py/x.txt": b""})
    (tmp_path / "c-1.0-py3-none-any.whl").write_bytes(data)
    below = (Placed(path="both.py", mode=0o40755), Placed(path="both.py/x.txt", mode=0o100644))
    both = [plans[0], plan]

    for order in (both, both[::-1]):
        with pytest.raises(Conflict, match=r"both\.py: a file in a, a directory in c"):
            check_overlaps(
                lock, order, {**layers, plan.id: replace(layers[plan.id], placed=below)}, files, agreed=frozenset()
            )


@pytest.fixture
def shared(tmp_path):
    """Check layers of a Debian package each, by its entries and the checksums that it carries."""

    def check(*packages, hides=None, agreed=False):
        plans, layers, kept = [], {}, {}
        for number, (entries, sums) in enumerate(packages):
            name = f"deb{number}"
            data = make_deb([directory("usr"), *entries], name=name, members={"md5sums": sums} if sums else {})
            deb = deb_of(data, name=name)
            kept[deb] = tmp_path / f"{name}.deb"
            kept[deb].write_bytes(data)
            compilation = Compilation(python=SMALL.python, platform=SMALL.platform, packages=None)
            plans.append(DebPlan(id=f"x/{name}", debs=(deb,), compilation=compilation))
            layers[f"x/{name}"] = layer_of(list(deb_entries(kept[deb], deb))).layer
        if hides:
            plan = RemovalPlan(id="x/removed", removed=(), kept=(), files=(), python=SMALL.python)
            plans.insert(1, plan)
            layers[plan.id] = layer_of([whiteout(hides)]).layer
        known = {plan.key for plan in plans} if agreed else frozenset()
        check_shared(plans, layers, SimpleNamespace(file=kept.__getitem__), agreed=known)

    return check


def md5(data, path="usr/x"):
    return f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {path}\n"


A, B, LINK = file("usr/x", b"a"), file("usr/x", b"b"), symlink("usr/x", "a")


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((A, ""), (B, "")),
        ((A, ""), (A, "")),
        ((A, md5(b"a")), (B, "")),
        ((LINK, ""), (symlink("usr/x", "b"), "")),
        ((LINK, ""), (A, md5(b"a"))),
        ((directory("usr/x"), ""), (LINK, "")),
        ((directory("usr/x"), ""), (A, md5(b"a"))),
    ],
)
def test_a_path_that_is_not_the_same_in_two_layers_of_debian_packages_is_refused(shared, one, two):
    for packages in ((one, two), (two, one)):
        with pytest.raises(SharedPath, match="/usr/x: both of deb0 and deb1 have it"):
            shared(*(([entry], sums) for entry, sums in packages))


@pytest.mark.parametrize(
    "packages",
    [
        [([A], md5(b"a")), ([A], md5(b"a"))],
        [([LINK], ""), ([LINK], "")],
        [([directory("usr/x")], ""), ([directory("usr/x", 0o700)], "")],
    ],
)
def test_what_two_debian_packages_both_have_is_in_no_ones_way(shared, packages):
    shared(*packages)


def test_what_is_hidden_or_was_in_one_image_before_is_not_looked_at(shared):
    shared(([A], ""), ([B], ""), hides="usr/x")
    shared(([A], ""), ([B], ""), hides="usr")
    shared(([A], ""), ([B], ""), agreed=True)


@pytest.fixture
def look(tmp_path):
    """Check packages before a build: wheels by name and files, debs by name and members of their control archive."""

    def check(wheels=(), debs=(), *, compiled=True, absent=()):
        found = {}
        for name, files in wheels:
            data = make_wheel(name, files=files)
            found[locked_wheel(name, data)] = data
        for name, members in debs:
            data = make_deb(name=name, members=members)
            found[deb_of(data, name=name)] = data
        for artifact, data in found.items():
            (tmp_path / artifact.digest.hex).write_bytes(data)
        ours = tuple(each for each in found if isinstance(each, Wheel))
        lock = replace(SMALL, wheels=ours, debs=tuple(each for each in found if each not in ours))
        packages = SimpleNamespace() if compiled else None  # what compiles is not asked for
        compilation = Compilation(python=SMALL.python, platform=SMALL.platform, packages=packages)
        plans = [WheelPlan(id=f"x/{each.name}", wheels=(each,), compilation=compilation) for each in ours]
        source = SimpleNamespace(file=lambda artifact: tmp_path / artifact.digest.hex)
        return check_here(lock, plans, source, lambda artifact: artifact.name not in absent)

    return check


TWO_WHEELS = [("one", {"both.py": b"1", "one.py": b""}), ("two", {"both.py": b"2"})]


@pytest.mark.parametrize("compiled", [True, False])
def test_two_wheels_with_one_module_are_one_line_compiled_or_not(look, compiled):
    with pytest.raises(Conflict) as caught:
        look(TWO_WHEELS, compiled=compiled)

    assert caught.value.problems == (
        "opt/env/lib/python3.13/site-packages/both.py: one and two have different files there",
    )


def test_a_compiled_module_that_a_wheel_brings_is_in_no_ones_way_where_nothing_is_compiled(look):
    shipped = {"__pycache__/both.cpython-313.pyc": b"theirs"}
    wheels = [("one", {"both.py": b"1"}), ("two", shipped)]

    assert look(wheels, compiled=False).read == 2
    with pytest.raises(Conflict, match="pyc"):
        look(wheels)


@pytest.mark.parametrize(
    "name",
    ["{data}/data/share/x", "{data}/headers/x.h", "{data}/scripts/run", "{data}/data/lib64/python3.13/site-packages/x"],
)
def test_files_of_every_scheme_are_held_against_each_other(look, name):
    wheels = [
        ("one", {name: b"1"}),
        ("two", {name.replace("{data}/headers", "{data}/data/include/site/python3.13/one"): b"2"}),
    ]

    with pytest.raises(Conflict, match="one and two"):
        look(wheels)


def test_a_file_of_one_scheme_is_held_against_a_module(look):
    with pytest.raises(Conflict, match=r"m\.py: one and two"):
        look([("one", {"m.py": b"1"}), ("two", {"{data}/data/lib/python3.13/site-packages/m.py": b"2"})])


def test_spellings_of_one_name_are_told(look):
    assert look([("one", {"README": b"1"}), ("two", {"ReadMe": b"2"})]).twins == (
        "opt/env/lib/python3.13/site-packages/README of one, opt/env/lib/python3.13/site-packages/ReadMe of two",
    )


def test_debian_packages_are_checked_before_a_build_too(look):
    sums = {"md5sums": f"{'0' * 32}  usr/lib/x\n"}
    other = {"md5sums": f"{'1' * 32}  lib/x\n"}

    with pytest.raises(SharedPath, match="/usr/lib/x: both a1 and b1"):
        look(debs=[("a1", sums), ("b1", other)])
    with pytest.raises(InPrefix, match="/opt/env/lib/x: a1 has it"):
        look([("one", {})], debs=[("a1", {"md5sums": f"{'0' * 32}  opt/env/lib/x\n"})])
    with pytest.raises(UnknownScript, match="a1"):
        look(debs=[("a1", {"postinst": "#!/bin/sh\nrm -rf /\n"})])


def test_what_is_not_here_is_counted_and_not_read(look):
    found = look(TWO_WHEELS, debs=[("a1", {}), ("b1", {})], absent={"two", "b1"})

    assert (found.read, found.unread) == (2, 2)
