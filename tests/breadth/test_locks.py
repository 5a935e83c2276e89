"""Locks of stacks that people train and serve with: as committed, held against their declarations, offline.

They are made by hand, in this folder: ``envbuilder lock vllm ray-xgboost jax nemo``.
"""

import re
from pathlib import Path

import pytest

from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import load
from envbuilder.lock.cuda import cuda_axis
from envbuilder.lock.partition import MAX_LAYERS
from envbuilder.lock.tags import best_wheel, supported_tags
from envbuilder.oci.platform import Platform
from envbuilder.spec.project import environments, load_spec, lock_file

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Released as source only: it has no lock, and what is said then is in tests/unit/lock/test_python.py.
UNLOCKABLE = {"flash-attn"}
LOCKED = [
    (project, name, platform)
    for project in (HERE, ROOT)
    for name in environments(project)
    if name not in UNLOCKABLE
    for platform in load_spec(project, name).platforms
]
IDS = [f"{name}-{platform.machine}" for _, name, platform in LOCKED]


def locked(project, name, platform):
    file = lock_file(project, name, platform)
    return load(file.read_bytes(), source=file.name)


@pytest.fixture(params=LOCKED, ids=IDS)
def case(request):
    project, name, platform = request.param
    return load_spec(project, name), locked(project, name, platform)


@pytest.mark.parametrize(("project", "name", "platform"), [each for each in LOCKED if each[0] == HERE])
def test_a_lock_is_fresh_and_within_the_layer_budget(project, name, platform):
    lock = locked(project, name, platform)

    assert stale_reasons(load_spec(project, name), platform, lock) == ()
    assert len(lock.layers) <= MAX_LAYERS


def test_every_wheel_runs_on_the_image(case):
    _, lock = case
    tags = supported_tags(lock.python, lock.platform, lock.glibc)

    assert [wheel.file for wheel in lock.wheels if best_wheel([wheel.file], tags) is None] == []


def test_every_deb_is_for_the_machine(case):
    _, lock = case

    assert {deb.architecture for deb in lock.debs} <= {lock.platform.debian, "all"}


def test_what_was_asked_for_is_there_or_the_lock_says_why_not(case):
    spec, lock = case
    there = {wheel.name: wheel.version for wheel in lock.wheels}
    said = {each.name: each for each in lock.substitutions}
    missing = {re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in spec.requires} - {*there, *said}
    quiet = [
        pin for pin in (spec.pins.versions if spec.pins else ()) if there.get(pin[0]) != pin[1] and pin[0] not in said
    ]

    assert missing == set()
    assert quiet == []
    for each in lock.substitutions:
        assert each.reason
        assert each.got in {"", there.get(each.name)} or each.got.split(" ")[0] in there


def test_the_cuda_axis_is_that_of_the_wheels(case):
    spec, lock = case

    if lock.parent is None:
        assert cuda_axis(spec.cuda, lock.wheels, debs=lock.debs) == lock.cuda


def test_a_lock_names_no_host_and_no_folder(case):
    _, lock = case

    assert not re.search(r"[a-z]+://|\B/(?:srv|home|root|tmp|work)\b", str(lock))


def test_the_managed_environment_is_locked_but_for_what_no_index_has():
    lock = locked(ROOT, "databricks-ai-v5", Platform("x86_64"))
    by_reason = {each.name: each.reason for each in lock.substitutions}
    wheels = {wheel.name: wheel for wheel in lock.wheels}

    assert lock.system
    assert (lock.system.name, lock.system.interpreter, lock.glibc) == ("ubuntu-24.04", "3.12.3", "2.39")
    assert len(wheels) == 433 - 11 - 1  # without the system's own and antlr4-python3-runtime
    assert sum(reason.startswith("comes with the system") for reason in by_reason.values()) == 11
    assert {name for name, reason in by_reason.items() if reason.startswith("public build")} == {
        "torch",
        "torchao",
        "torchaudio",
        "torchvision",
    }
    assert lock.cuda
    assert lock.cuda.toolkit == "12.8"  # the public build of torch 2.9.0


def test_vllm_says_which_library_is_there_for_two_cudas():
    lock = locked(HERE, "vllm", Platform("x86_64"))

    assert lock.cuda
    assert lock.cuda.twice == ("nvidia-cutlass-dsl-libs-cu12", "nvidia-cutlass-dsl-libs-cu13")
