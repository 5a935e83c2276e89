"""uv against a small index of our own: what is chosen, kept, and how failures read."""

import os
import tempfile
from dataclasses import replace

import pytest

from envbuilder.lock.builds import Builds
from envbuilder.lock.download import Http, http_pool
from envbuilder.lock.model import Interpreter
from envbuilder.lock.python import (
    IncompleteIndex,
    IndexGone,
    IndexRefused,
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
from envbuilder.testing.index import Answer, PackageIndex, tiny_wheel

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

    with pytest.raises(IndexRefused, match="401") as caught:
        resolve(["a"], TARGET, uv=uv)
    assert "credentials" in caught.value.hint
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, IndexGone), (410, IndexGone), (451, IndexGone), (403, IndexRefused), (429, IndexUnavailable)],
)
def test_a_page_of_links_that_is_refused_for_good_is_not_tried_again_later(index, uv, status, error):
    index.faults["/links.html"] = [Answer(status)] * 9
    want = Wanted(requires=("inner",), sources={"inner": "page"})

    with pytest.raises(error, match=str(status)) as caught:
        resolve_wheels(want, TARGET, uv=with_roles(uv, page=f"flat+{index.address}/links.html"))
    assert "page" in caught.value.hint or "index" in caught.value.hint


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


@pytest.fixture
def corp():
    with PackageIndex() as server:
        yield server


def with_roles(uv, **roles):
    return replace(uv, indexes=python_indexes(uv.environment, roles))


def test_a_package_with_a_source_comes_from_there_alone_whoever_asks_for_it(index, corp, uv):
    index.add("a", "1", requires=["inner"])
    index.add("inner", "99")
    ours = corp.add("inner", "1")
    corp.add("a", "7")
    want = Wanted(requires=("a",), sources={"inner": "corp"})

    found = resolve_wheels(want, TARGET, uv=with_roles(uv, corp=corp.url))

    assert names(found) == ["a 1", "inner 1"]
    assert found[1] == replace(ours, index="corp")


def test_a_package_that_its_source_does_not_have_comes_from_nowhere(index, corp, uv):
    index.add("inner", "99")
    want = Wanted(requires=("inner",), sources={"inner": "corp"})

    with pytest.raises(UnknownPackage, match="inner"):
        resolve_wheels(want, TARGET, uv=with_roles(uv, corp=corp.url))


def test_what_was_locked_from_another_index_is_not_kept(index, corp, uv):
    old = index.add("inner", "1")
    ours = corp.add("inner", "1", padding=9)
    want = Wanted(requires=("inner",), sources={"in*": "corp"})

    found = resolve_wheels(want, TARGET, preferred=[old], uv=with_roles(uv, corp=corp.url))

    assert found == (replace(ours, index="corp"),)


def test_a_folder_of_wheels_is_an_index_beside_the_default_one(index, uv, tmp_path):
    index.add("a", "1", requires=["built"])
    file, data = tiny_wheel("built", "3")
    (tmp_path / file).write_bytes(data)
    want = Wanted(requires=("a",), sources={"built": "wheels"})
    known = with_roles(uv, wheels=str(tmp_path))

    # The default index has none: it must be asked for by name.
    found = resolve_wheels(
        replace(want, requires=("a", "built")), TARGET, uv=replace(known, size_of=lambda _: len(data))
    )

    assert [(wheel.name, wheel.index, wheel.size) for wheel in found] == [
        ("a", "default", found[0].size),
        ("built", "wheels", len(data)),
    ]


def test_a_page_of_links_is_an_index_of_all_that_it_names(index, corp, uv, environment):
    index.add("a", "1", requires=["built"])
    theirs = [corp.add("built", "3"), corp.add("other", "1")]
    corp.user = "me:secret"
    page = f"flat+{corp.address.replace('//', '//me:secret@')}/links.html"
    known = with_roles(uv, links=page)
    want = Wanted(requires=("a", "built"), sources={"built": "links"})

    found = resolve_wheels(want, TARGET, uv=replace(known, size_of=lambda _: theirs[0].size))
    builds = Builds(http=Http(pool=http_pool({}), wait=lambda _: None), indexes=known.indexes.all)

    assert found[1] == replace(theirs[0], index="links")
    assert builds.missing("links", "built", "3", TARGET) == ""
    assert "has no 1" in builds.missing("links", "built", "1", TARGET)  # other 1 is none of it
    assert "secret" not in str(found)


@pytest.mark.parametrize("html", [False, True])
def test_an_address_that_writes_the_local_version_in_percents_is_a_file_as_any_other(index, uv, html):
    index.html, index.quoted = html, True
    wheel = index.add("torch", "2.9.0+cu130")

    found = resolve(["torch"], TARGET, uv=replace(uv, size_of=lambda _: wheel.size))

    assert found == (wheel,)
    assert found[0].file == "torch-2.9.0+cu130-py3-none-any.whl"


def test_an_offline_wheelhouse_is_all_that_is_asked(index, uv, tmp_path):
    for name, requires in (("a", ["b"]), ("b", [])):
        file, data = tiny_wheel(name, "1", requires=requires)
        (tmp_path / file).write_bytes(data)
    known = with_roles(uv, default=str(tmp_path))

    assert names(resolve(["a"], TARGET, uv=replace(known, size_of=lambda _: 1))) == ["a 1", "b 1"]
    assert index.seen == []


def test_a_package_that_is_source_only_is_refused_with_the_way_out(index, uv):
    index.add("torch", "1")
    index.add_source("flash-attn", "2")

    with pytest.raises(NoWheel, match="flash-attn: there is source only") as caught:
        resolve(["flash-attn", "torch"], TARGET, uv=uv)
    assert 'flash-attn = "built"' in caught.value.hint
    assert "pip wheel --no-deps --no-build-isolation flash-attn" in caught.value.hint


def test_a_wheel_above_the_images_glibc_is_refused_by_name(index, uv):
    index.add("d", "1", tag="cp313-cp313-manylinux_2_38_x86_64")

    with pytest.raises(NoWheel, match=r"(?s)glibc 2.36.*\bd\b.*manylinux_2_38_x86_64"):
        resolve(["d"], replace(TARGET, glibc="2.36"), uv=uv)


def test_excluded_packages_never_come_and_overrides_replace_what_others_ask(index, uv):
    index.add("a", "1", requires=["gone", "b==9"])
    index.add("b", "1")
    want = Wanted(requires=("a",), excluded=("gone",), overrides=("b>=1",))

    assert names(resolve_wheels(want, TARGET, uv=uv)) == ["a 1", "b 1"]


def test_a_file_without_a_promised_digest_is_locked_by_its_bytes(index, uv):
    wheel = index.add("a", "1")
    index.hashes = False

    assert resolve(["a"], TARGET, uv=replace(uv, bytes_of=lambda _: (wheel.digest, wheel.size))) == (wheel,)


def test_a_wrong_promise_of_a_named_index_loses_against_its_bytes(index, corp, uv):
    index.add("a", "1")
    wheel = corp.add("b", "1")
    corp.promised[wheel.file] = "0" * 64
    want = Wanted(requires=("a", "b"), sources={"b": "corp"})
    asked = []

    def bytes_of(url):
        asked.append(url.rpartition("/")[2])
        return wheel.digest, wheel.size

    known = replace(with_roles(uv, corp=corp.url), bytes_of=bytes_of)
    assert resolve_wheels(want, TARGET, uv=known)[1].digest.hex == "0" * 64
    assert asked == []
    assert resolve_wheels(want, TARGET, uv=replace(known, distrust=True))[1].digest == wheel.digest
    assert asked == [wheel.file]


@pytest.mark.parametrize("minor", range(10, 15))
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_python_and_machine_gets_its_own_wheel(index, uv, minor, machine):
    for each in range(10, 15):
        for other in ("x86_64", "aarch64"):
            index.add("n", "1", tag=f"cp3{each}-cp3{each}-manylinux_2_28_{other}")
    python = Interpreter(version=f"3.{minor}", tag=f"cp3{minor}")
    target = PythonTarget(python=python, full_version=f"3.{minor}.0", platform=Platform(machine), glibc="2.34")

    assert [wheel.file for wheel in resolve(["n"], target, uv=uv)] == [
        f"n-1-cp3{minor}-cp3{minor}-manylinux_2_28_{machine}.whl"
    ]


def test_a_credential_of_an_index_is_in_no_message(index, corp, uv):
    corp.user = "me:s3cr3t"
    url = corp.url.replace("://", "://me:wrong-s3cr3t@")
    want = Wanted(requires=("inner",), sources={"inner": "corp"})

    with pytest.raises(IndexRefused) as caught:
        resolve_wheels(want, TARGET, uv=with_roles(uv, corp=url))
    assert "s3cr3t" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"
