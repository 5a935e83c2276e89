"""uv against a small index of our own: what is chosen, kept, and how failures read."""

import os
import tempfile
from dataclasses import replace

import pytest

from envbuilder.lock.model import Interpreter
from envbuilder.lock.python import (
    IncompleteIndex,
    IndexUnavailable,
    NoWheel,
    UnknownPackage,
    UnnamedIndex,
    Unsatisfiable,
    resolve_wheels,
)
from envbuilder.lock.settings import python_indexes
from envbuilder.lock.uv import PythonTarget, Uv
from envbuilder.lock.wanted import Wanted
from envbuilder.oci.platform import Platform
from envbuilder.proc import run
from envbuilder.testing.index import Answer, PackageIndex

pytestmark = pytest.mark.slow

TARGET = PythonTarget(
    python=Interpreter(version="3.13", tag="cp313"), full_version="3.13.5", platform=Platform("x86_64"), glibc="2.41"
)


@pytest.fixture
def index():
    with PackageIndex() as server:
        yield server


@pytest.fixture
def environment(tmp_path, index):
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
        "UV_DEFAULT_INDEX": index.url,
        "UV_HTTP_RETRIES": "0",
    }


@pytest.fixture
def uv(environment):
    return Uv(runner=run, environment=environment, indexes=python_indexes(environment, {}))


def resolve(requires, target, *, constraints=(), **options):
    return resolve_wheels(Wanted(requires=tuple(requires), constraints=tuple(constraints)), target, **options)


def names(wheels):
    return [f"{wheel.name} {wheel.version}" for wheel in wheels]


def test_the_whole_closure_is_locked_with_digests_and_sizes(index, uv):
    b = index.add("b", "2")
    a = index.add("a", "1", requires=["b>=1", "c; sys_platform == 'win32'"])

    assert resolve(["a"], TARGET, uv=uv) == (a, b)


def test_the_target_decides_and_not_this_host(index, uv):
    index.add("a", "1", requires=["b; python_version < '3.13'", "c; python_full_version >= '3.13.5'"])
    index.add("b", "1")
    index.add("c", "1")
    index.add("d", "1", tag="cp313-cp313-manylinux_2_28_aarch64")
    wanted = index.add("d", "1", tag="cp313-cp313-manylinux_2_38_x86_64")

    assert names(resolve(["a"], TARGET, uv=uv)) == ["a 1", "c 1"]
    assert resolve(["d"], TARGET, uv=uv) == (wanted,)
    with pytest.raises(NoWheel):
        resolve(["d"], replace(TARGET, glibc="2.36"), uv=uv)


def test_constraints_limit_and_ask_for_nothing(index, uv):
    index.add("a", "1")
    index.add("a", "2")
    index.add("b", "1")

    assert names(resolve(["a"], TARGET, constraints=["a<2", "b==1"], uv=uv)) == ["a 1"]


def test_what_was_locked_is_kept_where_it_may(index, uv):
    old = replace(index.add("a", "1"), layer="x/a")
    index.add("a", "2")
    index.add("b", "1")

    assert names(resolve(["a"], TARGET, uv=uv)) == ["a 2"]
    assert resolve(["a", "b"], TARGET, preferred=[old], uv=uv)[0] == old
    assert names(resolve(["a>1"], TARGET, preferred=[old], uv=uv)) == ["a 2"]


def test_a_kept_version_keeps_its_file_unless_that_fits_no_more(index, uv):
    pure = index.add("a", "1")
    native = index.add("a", "1", tag="cp313-cp313-manylinux_2_38_x86_64")

    assert resolve(["a"], TARGET, uv=uv) == (native,)
    assert resolve(["a"], TARGET, preferred=[pure], uv=uv) == (pure,)
    assert resolve(["a"], replace(TARGET, glibc="2.36"), preferred=[native], uv=uv) == (pure,)


def test_unsatisfiable_requirements_show_uvs_explanation(index, uv):
    index.add("a", "1")

    with pytest.raises(Unsatisfiable, match=r"linux/x86_64, Python 3.13, glibc 2.41[^$]*only a==1 is available"):
        resolve(["a>5"], TARGET, uv=uv)


def test_an_unknown_package_is_named(index, uv):
    with pytest.raises(UnknownPackage, match="nope was not found") as caught:
        resolve(["nope"], TARGET, uv=uv)
    assert "'nope'" in caught.value.hint


def test_a_package_that_is_source_only_is_named(index, uv):
    index.projects["a"] = ["a-1.tar.gz"]
    index.files["/files/a-1.tar.gz"] = b""

    with pytest.raises(NoWheel, match="no usable wheels"):
        resolve(["a"], TARGET, uv=uv)


def test_an_index_without_hashes_gets_them_from_the_bytes(index, uv):
    index.hashes = False
    wheel = index.add("a", "1")

    assert resolve(["a"], TARGET, uv=uv) == (wheel,)


def test_a_size_that_the_page_does_not_tell_is_asked_for(index, uv):
    index.html = True
    wheel = index.add("a", "1")
    asked = []

    def size_of(url):
        asked.append(url)
        return wheel.size

    assert resolve(["a"], TARGET, uv=replace(uv, size_of=size_of)) == (wheel,)
    assert asked == [f"{index.address}/files/{wheel.file}"]


def test_a_size_that_nobody_tells_is_an_error_with_the_packages_name(index, uv):
    index.sizes = False
    index.add("a", "1")

    with pytest.raises(IncompleteIndex, match=r"a 1: the index gives no size for a-1-py3-none-any\.whl"):
        resolve(["a"], TARGET, uv=uv)


def test_an_index_that_fails_is_no_fault_of_the_declaration(index, uv):
    index.add("a", "1")
    index.faults["/simple/a/"] = [Answer(503)] * 9

    with pytest.raises(IndexUnavailable):
        resolve(["a"], TARGET, uv=uv)


def test_an_index_that_is_down_is_no_fault_of_the_declaration(environment):
    environment = environment | {"UV_DEFAULT_INDEX": "http://user:hunter2@127.0.0.1:9/simple"}
    uv = Uv(runner=run, environment=environment, indexes=python_indexes(environment, {}))

    with pytest.raises(IndexUnavailable) as caught:
        resolve(["a"], TARGET, uv=uv)
    assert "hunter2" not in str(caught.value)


def test_an_index_that_wants_credentials_says_so(index, uv):
    index.add("a", "1")
    index.user = "alice:secret"

    with pytest.raises(IndexUnavailable, match="401") as caught:
        resolve(["a"], TARGET, uv=uv)
    assert "credentials" in caught.value.hint


def test_no_configuration_of_a_project_reaches_uv(index, uv, tmp_path, monkeypatch):
    wheel = index.add("a", "1")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/uv.toml").write_text('constraint-dependencies = ["a>5"]\n[pip]\nno-binary = ["a"]\n')
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    assert resolve(["a"], TARGET, uv=uv) == (wheel,)


def test_the_users_configuration_reaches_uv(index, uv, tmp_path):
    index.add("a", "1")
    index.add("a", "2")
    (tmp_path / ".config/uv").mkdir(parents=True)
    (tmp_path / ".config/uv/uv.toml").write_text("[pip]\nresolution = 'lowest'\n")

    assert names(resolve(["a"], TARGET, uv=uv)) == ["a 1"]


def test_each_wheel_names_the_role_of_its_index(index, environment):
    with PackageIndex() as other:
        index.add("a", "1", requires=["b"])
        index.add("b", "1")
        other.add("b", "2+cu130")
        other.user = "alice:secret"
        url = other.url.replace("http://", "http://alice:secret@")
        uv = Uv(
            runner=run, environment=environment, indexes=python_indexes(environment, {"torch": url}), extra=["torch"]
        )

        wheels = resolve(["a"], TARGET, uv=uv)

    assert [(wheel.name, wheel.version, wheel.index) for wheel in wheels] == [
        ("a", "1", "default"),
        ("b", "2+cu130", "torch"),
    ]


def test_an_index_without_a_name_is_refused(index, environment):
    with PackageIndex() as other:
        other.add("b", "2")
        environment = environment | {"UV_INDEX": other.url}
        uv = Uv(runner=run, environment=environment, indexes=python_indexes(environment, {}))

        with pytest.raises(UnnamedIndex, match="b: comes from an index that has no name"):
            resolve(["b"], TARGET, uv=uv)


def test_no_requirements_start_no_program():
    def never(*_args, **_options):
        pytest.fail("started a program")

    uv = Uv(runner=never, environment={}, indexes=python_indexes({"UV_DEFAULT_INDEX": "http://x"}, {}))

    assert resolve([], TARGET, uv=uv) == ()
