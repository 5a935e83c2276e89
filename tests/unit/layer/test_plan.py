"""Plans: what decides a layer's bytes is in its key, and a child begins with its parent's layers."""

from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.plan import ForeignBase, WheelPlan, compiled_here, plan
from envbuilder.layer.removal import whiteouts
from envbuilder.layer.top import TopPlan
from envbuilder.lock.codec import load
from envbuilder.lock.model import Lock, LockedFile
from envbuilder.oci.platform import Platform

LOCKS = Path(__file__).resolve().parents[3] / "lockfiles"


def committed(name: str) -> Lock:
    return load((LOCKS / name / "linux-x86_64.lock.toml").read_bytes(), source=name)


@pytest.fixture(scope="module")
def standard() -> Lock:
    return committed("standard")


@pytest.fixture(scope="module")
def ai() -> Lock:
    return committed("ai")


def keys(plans):
    return [(each.id, each.key) for each in plans]


def test_ai_begins_with_the_layers_of_standard(standard, ai):
    parent, child = plan([standard]), plan([standard, ai])

    assert len(child) > len(parent)
    assert keys(child)[: len(parent)] == keys(parent)


def test_ai_adds_no_second_copy_of_a_cuda_library(standard, ai):
    own = {wheel.name for wheel in ai.wheels} - {wheel.name for wheel in standard.wheels}

    assert {wheel.name for wheel in standard.wheels} <= {wheel.name for wheel in ai.wheels}
    assert [name for name in own if name.startswith("nvidia-") or "cu12" in name] == []


def test_every_artefact_is_in_exactly_one_layer(ai, standard):
    planned = [
        a.digest
        for each in plan([standard, ai])
        if not isinstance(each, TopPlan)
        for a in (each.wheels if isinstance(each, WheelPlan) else each.debs)
    ]

    assert sorted(planned) == sorted(a.digest for a in (*ai.wheels, *ai.debs))


def test_layers_stay_within_the_limit(ai):
    assert len(ai.layers) <= 64


def test_the_same_lock_gives_the_same_keys(standard):
    assert keys(plan([standard])) == keys(plan([standard]))


def test_the_order_of_artefacts_in_a_lock_changes_no_set_of_bytes(standard):
    shuffled = replace(standard, wheels=standard.wheels[::-1], debs=standard.debs[::-1])

    assert {each.id for each in plan([shuffled])} == {each.id for each in plan([standard])}
    assert keys(plan([shuffled])) == keys(plan([standard]))


def test_another_wheel_changes_its_layer_and_the_computed_one_only(standard):
    target = standard.wheels[0]
    other = replace(target, digest=Digest.of(b"another"))
    changed = replace(standard, wheels=(other, *standard.wheels[1:]))

    before, after = dict(keys(plan([standard]))), dict(keys(plan([changed])))

    assert {name for name in before if before[name] != after[name]} == {target.layer, "standard/top"}


def test_another_interpreter_changes_every_layer_that_is_compiled_by_it(standard):
    debs = tuple(
        replace(deb, digest=Digest.of(b"x")) if deb.name == "python3.13-minimal" else deb for deb in standard.debs
    )

    before, after = dict(keys(plan([standard]))), dict(keys(plan([replace(standard, debs=debs)])))

    assert all(before[name] != after[name] for name in before)


def test_a_file_of_the_project_changes_the_computed_layer_only(standard):
    rule = LockedFile(source="a", path="etc/a", mode=0o644, digest=Digest.of(b"a"))

    before, after = keys(plan([standard])), keys(plan([replace(standard, files=(rule,))]))

    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1]


def test_an_environment_on_a_foreign_system_has_no_layers_yet():
    with pytest.raises(ForeignBase, match=r"its base is ubuntu-24\.04 with Python 3\.12\.3"):
        plan([committed("databricks-ai-v5")])


def test_allowed_scripts_are_part_of_the_computed_layers_recipe(standard):
    (*_, before), (*_, after) = plan([standard]), plan([replace(standard, allow_scripts=("odd",))])

    assert before.key != after.key


@pytest.mark.parametrize(
    ("goes", "stays", "hidden"),
    [
        ({"s/a/x.py", "s/a/b/y.py"}, {"s/c.py"}, ("s/a",)),
        ({"s/n/x.py", "s/n/d/z"}, {"s/n/y.py"}, ("s/n/d", "s/n/x.py")),
        ({"s/x.py"}, {"s/x.py"}, ()),
        ({"s/bin/run", "s/bin/keep"}, {"s/bin/keep"}, ("s/bin/run",)),
    ],
)
def test_whiteouts_hide_whole_directories_and_nothing_that_stays(goes, stays, hidden):
    assert whiteouts(goes, stays) == hidden


def test_this_hosts_interpreter_of_the_same_version_compiles_for_another_architecture(standard):
    arm = replace(
        standard,
        platform=Platform("aarch64"),
        debs=tuple(replace(each, digest=Digest.of(each.name.encode())) for each in standard.debs),
    )
    foreign = plan([arm])
    helped = compiled_here(foreign, standard.debs, Platform("x86_64"))

    assert keys(helped) == keys(foreign)  # it decides no byte
    (debs,) = {each.compilation.artifacts for each in helped if hasattr(each, "compilation")}
    assert set(debs) <= set(standard.debs)
    assert compiled_here(plan([standard]), standard.debs, Platform("x86_64")) == plan([standard])


def test_another_version_of_the_interpreter_does_not_stand_in(standard):
    arm = replace(standard, platform=Platform("aarch64"))
    others = [replace(each, version="0") if each.name == "python3.13-minimal" else each for each in standard.debs]

    assert compiled_here(plan([arm]), others, Platform("x86_64")) == plan([arm])
    assert compiled_here(plan([arm]), [], Platform("x86_64")) == plan([arm])


def test_where_nothing_is_compiled_no_interpreter_is_wanted_on_any_host(standard):
    plain = replace(standard, bytecode=False)
    arm = replace(plain, platform=Platform("aarch64"))
    before, after = dict(keys(plan([standard]))), dict(keys(plan([plain])))

    assert all(before[name] != after[name] for name in before)
    assert keys(compiled_here(plan([arm]), [], Platform("x86_64"))) == keys(plan([plain]))
    assert all(each.compilation.artifacts == () for each in plan([plain]) if hasattr(each, "compilation"))
    child = replace(plain, name="y", layers=(*plain.layers, "y/top"), bytecode=True)
    assert keys(plan([plain, child]))[:-1] == keys(plan([plain]))  # a layer is as its own lock says
