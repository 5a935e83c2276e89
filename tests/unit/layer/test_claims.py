import pytest

from envbuilder.digest import Digest
from envbuilder.layer.claims import Claim, Conflict, check_conflicts, twins
from envbuilder.layer.prefix import prefix_claims
from envbuilder.lock.model import Interpreter

ONE, TWO = Claim(Digest.of(b"1"), 0o644), Claim(Digest.of(b"2"), 0o644)


def test_equal_files_and_shared_directories_are_no_conflict():
    check_conflicts([("a", {"x/shared": ONE, "x/a": ONE}), ("b", {"x/shared": ONE, "x/b": TWO})])


def test_every_conflict_names_the_path_and_both_packages():
    with pytest.raises(Conflict) as caught:
        check_conflicts([("a", {"x": ONE, "y": ONE, "z": ONE}), ("b", {"x": TWO, "z": ONE}), ("c", {"y": TWO})])

    assert caught.value.problems == ("x: a and b have different files there", "y: a and c have different files there")
    assert caught.value.exit_code == 2


def test_equal_bytes_with_another_mode_are_a_conflict():
    with pytest.raises(Conflict, match="bin/x: a and b"):
        check_conflicts([("a", {"bin/x": ONE}), ("b", {"bin/x": Claim(ONE.digest, 0o755)})])


def test_a_file_where_another_package_has_a_directory_is_a_conflict():
    with pytest.raises(Conflict, match="lib/x: a file in b, a directory in a"):
        check_conflicts([("a", {"lib/x/y/z": ONE}), ("b", {"lib/x": ONE})])


def test_a_long_list_is_cut_and_counted():
    paths = {f"p{number:02}": ONE for number in range(30)}

    with pytest.raises(Conflict, match="and 10 more"):
        check_conflicts([("a", paths), ("b", dict.fromkeys(paths, TWO))])


@pytest.mark.parametrize("path", ["bin/python3", "pyvenv.cfg", "lib64"])
def test_no_package_may_replace_the_skeleton(path):
    skeleton = prefix_claims("opt/env", Interpreter(version="3.13", tag="cp313"))

    with pytest.raises(Conflict, match=f"opt/env/{path}: the prefix and evil"):
        check_conflicts([("the prefix", skeleton), ("evil", {f"opt/env/{path}": ONE})])


def test_a_module_in_two_packages_is_one_problem_and_not_another_for_what_is_compiled_of_it():
    def of(digest):
        return {"a.py": Claim(digest, 0o644), "__pycache__/a.pyc": Claim(digest, 0o644, made_from="a.py")}

    with pytest.raises(Conflict) as caught:
        check_conflicts([("one", of(Digest.of(b"1"))), ("two", of(Digest.of(b"2")))])

    assert caught.value.problems == ("a.py: one and two have different files there",)


def test_a_compiled_module_that_another_package_brings_is_a_problem_of_its_own():
    made = {"a.py": ONE, "__pycache__/a.pyc": Claim(ONE.digest, 0o644, made_from="a.py")}

    with pytest.raises(Conflict, match=r"a\.pyc: one and two"):
        check_conflicts([("one", made), ("two", {"__pycache__/a.pyc": TWO})])


@pytest.mark.parametrize(("one", "two"), [("x/README", "x/ReadMe"), ("x/caf\u00e9", "x/cafe\u0301"), ("\u00df", "SS")])
def test_paths_that_only_case_or_unicode_form_tells_apart_are_two_files_and_are_named(one, two):
    claims = [("a", {one: ONE, "y": ONE}), ("b", {two: TWO, "y": ONE})]

    check_conflicts(claims)
    assert twins(claims) == (f"{one} of a, {two} of b",)


def test_two_spellings_in_one_package_are_its_own_business():
    assert twins([("a", {"x/README": ONE, "x/ReadMe": TWO}), ("b", {"z": ONE})]) == ()
