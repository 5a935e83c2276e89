import pytest

from envbuilder.testing.checks import check_range_target, check_target

pytestmark = pytest.mark.slow


def test_a_repository_keeps_the_contract_of_a_target(make_repository):
    check_target(make_repository)


def test_a_repository_keeps_the_contract_of_a_range_target(make_repository):
    check_range_target(make_repository)
