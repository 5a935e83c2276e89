"""Chains of requirements, from METADATA as wheels have it."""

import pytest

from envbuilder.lock.why import BadMetadata, chains, marker_environment, needs, wheel_requires
from envbuilder.testing.artifacts import make_wheel, make_zip
from envbuilder.testing.locks import SMALL

HERE = marker_environment(SMALL)


def told(package, roots, requires):
    return [[need.requirement for need in chain] for chain in chains(package, needs(roots, requires, HERE))]


def test_a_chain_begins_with_the_declaration():
    assert told("c", ["a>1"], {"a": ["b"], "b": ["C <3"]}) == [["a>1", "b", "c<3"]]


def test_each_direct_requirer_has_its_chain():
    requires = {"a": ["c"], "b": ["c>=2"]}

    assert told("c", ["a", "b", "c"], requires) == [["c"], ["a", "c"], ["b", "c>=2"]]


def test_an_extra_counts_where_it_is_asked_for():
    requires = {"a": ['c ; extra == "fast"']}

    assert told("c", ["a"], requires) == []
    assert told("c", ["a[fast]"], requires) == [["a[fast]", "c"]]


def test_an_extra_that_another_package_asks_for_counts_too():
    assert told("c", ["z"], {"z": ["a[Fast_One]"], "a": ['c ; extra == "fast-one"']}) == [["z", "a[Fast_One]", "c"]]


def test_markers_are_those_of_the_target_not_of_this_host():
    requires = {"a": ['c ; sys_platform == "win32"', 'd ; python_version >= "3.13"']}

    assert told("c", ["a"], requires) == []
    assert told("d", ["a"], requires) == [["a", "d"]]


def test_a_cycle_ends():
    assert told("b", ["a"], {"a": ["b"], "b": ["a"]}) == [["a", "b"]]


def test_a_line_that_no_longer_parses_is_left_out():
    assert told("c", ["a"], {"a": ["what ever (", "c"]}) == [["a", "c"]]


def test_a_wheel_says_what_it_requires(tmp_path):
    file = tmp_path / "a-1.0-py3-none-any.whl"
    file.write_bytes(make_wheel("a", requires=["b>1", 'c ; extra == "x"']))

    assert wheel_requires(file, source="a") == ("b>1", 'c ; extra == "x"')


@pytest.mark.parametrize(
    "data", [b"no zip", make_zip([("a.py", b"", 0o644)]), make_zip([("a.dist-info/METADATA", b"", 0o644)] * 1)[:-8]]
)
def test_a_wheel_without_metadata_is_refused(tmp_path, data):
    file = tmp_path / "a.whl"
    file.write_bytes(data)

    with pytest.raises(BadMetadata):
        wheel_requires(file, source="a")
