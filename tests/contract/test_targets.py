import itertools

import pytest

from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.checks import check_range_target, check_target


@pytest.fixture(params=["memory", "layout"])
def make(request, tmp_path):
    numbers = itertools.count()
    return {
        "memory": MemoryTarget,
        "layout": lambda: LayoutTarget(tmp_path / str(next(numbers)), create=True),
    }[request.param]


def test_every_target_keeps_the_contract(make):
    check_target(make)


def test_every_range_target_keeps_the_contract(make):
    check_range_target(make)
