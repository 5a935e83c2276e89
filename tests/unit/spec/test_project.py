"""A project on disk."""

import os

import pytest

from envbuilder.digest import Digest
from envbuilder.errors import SpecError, SpecErrors
from envbuilder.oci.platform import Platform
from envbuilder.spec.project import (
    NoProject,
    UnknownEnvironment,
    environments,
    find_project,
    lineage,
    load_spec,
    lock_file,
)

TEXT = 'name = "{}"\nversion = "1"\n'
ROOT = 'python = "3.13"\n[base]\nsuite = "trixie"\n'


@pytest.fixture
def project(tmp_path):
    for name, rest in [("a", ROOT), ("b", 'extends = "a"\n'), ("c", 'extends = "d"\n'), ("d", 'extends = "c"\n')]:
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "env.toml").write_text(TEXT.format(name) + rest)
    return tmp_path


def test_a_project_is_found_from_a_folder_below_it(project):
    below = project / "some/where"
    below.mkdir(parents=True)

    assert find_project(below) == project.resolve()


def test_a_folder_without_images_above_it_is_no_project(tmp_path):
    with pytest.raises(NoProject):
        find_project(tmp_path)


def test_environments_are_listed_by_name(project):
    assert environments(project) == ("a", "b", "c", "d")


def test_an_unknown_environment_is_told_with_those_that_exist(project):
    with pytest.raises(UnknownEnvironment, match="declared are: a, b, c, d"):
        load_spec(project, "nope")


@pytest.mark.parametrize("name", ["../a", "A", "", "a/b"])
def test_a_name_never_becomes_another_path(project, name):
    with pytest.raises(UnknownEnvironment):
        load_spec(project, name)


def test_a_name_that_differs_from_its_folder_is_refused(project):
    (project / "images/a/env.toml").write_text(TEXT.format("z") + ROOT)

    with pytest.raises(SpecError, match="want 'a', as the folder is called, got 'z'"):
        load_spec(project, "a")


def test_lineage_ends_at_the_environment_with_a_base(project):
    assert [spec.name for spec in lineage(project, "b")] == ["b", "a"]


def test_a_cycle_of_parents_is_refused(project):
    with pytest.raises(SpecError, match="a cycle: c -> d -> c"):
        list(lineage(project, "c"))


def test_a_file_is_named_by_its_digest(project):
    (project / "images/a/motd").write_bytes(b"hi")
    (project / "images/a/env.toml").write_text(TEXT.format("a") + ROOT + '[[files]]\nsource = "motd"\npath = "m"\n')

    assert load_spec(project, "a").files[0].digest == Digest.of(b"hi")


def test_a_symbolic_link_out_of_the_folder_is_refused(project):
    (project / "secret").write_text("x")
    (project / "images/a/motd").symlink_to(project / "secret")
    (project / "images/a/env.toml").write_text(TEXT.format("a") + ROOT + '[[files]]\nsource = "motd"\npath = "m"\n')

    with pytest.raises(SpecError, match="leads out of the environment's folder"):
        load_spec(project, "a")


def test_a_declaration_that_is_not_utf_8_is_refused(project):
    (project / "images/a/env.toml").write_bytes(b"\xff")

    with pytest.raises(SpecError, match="not UTF-8"):
        load_spec(project, "a")


def test_a_lock_stands_under_its_environment_and_platform(tmp_path):
    assert lock_file(tmp_path, "a", Platform("x86_64")) == tmp_path / "lockfiles/a/linux-x86_64.lock.toml"


@pytest.mark.parametrize(
    ("make", "said"),
    [(os.mkdir, "regular file"), (os.mkfifo, "regular file"), (lambda path: path.symlink_to(path), "symbolic links")],
    ids=["folder", "FIFO", "link to itself"],
)
def test_a_declaration_that_is_no_file_is_said_to_be_none(project, make, said):
    file = project / "images/a/env.toml"
    file.unlink()
    make(file)

    with pytest.raises(SpecError, match=f"images/a/env.toml: .*{said}"):
        load_spec(project, "a")


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)], ids=["FIFO", "folder", "link to itself"]
)
def test_a_source_that_is_no_file_is_a_problem_of_the_declaration(project, make):
    make(project / "images/a/odd")
    (project / "images/a/env.toml").write_text(
        TEXT.format("a") + '[[files]]\nsource = "odd"\npath = "etc/odd"\n' + ROOT.replace('python = "3.13"\n', "")
    )

    with pytest.raises(SpecErrors, match="odd: "):
        load_spec(project, "a")
