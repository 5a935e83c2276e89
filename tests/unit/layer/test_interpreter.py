import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.layer.build import LocalFiles
from envbuilder.layer.interpreter import CannotUnpack, NoInterpreter, interpreter_packages, unpack_interpreter
from envbuilder.layer.tree import Entry, file, symlink
from envbuilder.lock.model import Interpreter
from envbuilder.oci.platform import Platform
from envbuilder.paths import UnsafePath
from envbuilder.testing.artifacts import store_file
from envbuilder.testing.debs import deb_of, make_deb

PYTHON = Interpreter(version="3.13", tag="cp313")
PLATFORM = Platform("x86_64")
NAMES = ("python3.13-minimal", "libpython3.13-minimal", "libc6", "libexpat1", "zlib1g")


@pytest.fixture
def machine(tmp_path):
    """Makes a lock's debs and their files; ``entries`` go to the package of the interpreter."""

    def make(*entries, files=None):
        folder = tmp_path / "artifacts"
        folder.mkdir(exist_ok=True)
        debs, found = [], {}
        for name in NAMES:
            mine = name == NAMES[0]
            contents = {"usr/share/doc/x": name.encode(), **(files or {} if mine else {})}
            own = [file(path, data) for path, data in contents.items()]
            data = make_deb([*own, *(entries if mine else ())], name=name)
            deb = deb_of(data, name=name)
            debs.append(deb)
            found[deb.digest] = store_file(folder, data)
        return debs, LocalFiles(found)

    return make


def unpack(debs, artifacts, cache):
    return unpack_interpreter(interpreter_packages(debs, PYTHON), artifacts, PYTHON, PLATFORM, cache=cache)


def test_the_interpreter_is_started_by_its_own_loader_and_libraries(machine, tmp_path):
    files = {"usr/bin/python3.13": b"\x7fELF", "usr/lib/x86_64-linux-gnu/libc.so.6": b"so"}
    debs, artifacts = machine(files=files)
    found = unpack(debs, artifacts, tmp_path / "cache")
    (root,) = (each for each in (tmp_path / "cache").iterdir() if each.is_dir())
    libraries = root / "usr/lib/x86_64-linux-gnu"

    assert found.argv[0] == str(libraries / "ld-linux-x86-64.so.2")
    assert found.argv[-1] == str(root / "usr/bin/python3.13")
    assert (root / "usr/bin/python3.13").read_bytes() == b"\x7fELF"
    assert not (root / "usr/share").exists()
    assert not (root / "var").exists()


def test_an_unpacked_interpreter_is_used_again(machine, tmp_path):
    debs, artifacts = machine(files={"usr/bin/python3.13": b"x"})
    first = unpack(debs, artifacts, tmp_path / "cache")

    assert unpack(debs, LocalFiles({}), tmp_path / "cache") == first


def test_an_interpreter_that_lost_a_file_is_unpacked_again(machine, tmp_path):
    debs, artifacts = machine(files={"usr/bin/python3.13": b"x", "usr/lib/python3.13/os.py": b"y"})
    module = Path(unpack(debs, artifacts, tmp_path / "cache").home) / "lib/python3.13/os.py"
    module.unlink()
    unpack(debs, artifacts, tmp_path / "cache")

    assert module.read_bytes() == b"y"


def test_other_packages_make_another_interpreter_but_only_deciding_ones_another_identity(machine, tmp_path):
    debs, artifacts = machine()
    first = unpack(debs, artifacts, tmp_path / "cache")
    other = make_deb(name="libexpat1", version="2")
    newer = deb_of(other, name="libexpat1", version="2")
    files = LocalFiles({**artifacts.files, newer.digest: store_file(tmp_path, other)})
    second = unpack([newer if deb.name == "libexpat1" else deb for deb in debs], files, tmp_path / "cache")

    assert first.identity == second.identity
    assert first.home != second.home
    assert interpreter_packages(debs, PYTHON).identity == first.identity


def test_a_lock_without_the_interpreter_is_refused(machine):
    debs, _ = machine()

    with pytest.raises(NoInterpreter, match=r"python 3.13: no package libc6"):
        interpreter_packages([deb for deb in debs if deb.name != "libc6"], PYTHON)
    with pytest.raises(NoInterpreter, match=r"python 3.14: no package python3.14-minimal"):
        interpreter_packages(debs, replace(PYTHON, version="3.14"))


@pytest.mark.parametrize("package", NAMES)
def test_links_are_made_last_and_nothing_is_written_through_them(machine, tmp_path, package):
    outside = tmp_path / "outside"
    outside.mkdir()
    debs, artifacts = machine(symlink("usr/lib/evil", str(outside)))
    data = make_deb([file("usr/lib/evil/x", b"x")], name=package)
    changed = deb_of(data, name=package)
    if package != NAMES[0]:
        artifacts = LocalFiles({**artifacts.files, changed.digest: store_file(tmp_path, data)})
        debs = [changed if deb.name == package else deb for deb in debs]
    else:
        debs, artifacts = machine(symlink("usr/lib/evil", str(outside)), files={"usr/lib/evil/x": b"x"})

    with pytest.raises(CannotUnpack, match="usr/lib/evil"):
        unpack(debs, artifacts, tmp_path / "cache")
    assert list(outside.iterdir()) == []
    assert [each for each in (tmp_path / "cache").iterdir() if each.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_named(machine, tmp_path):
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(CannotUnpack, match="cache") as caught:
        unpack(*machine(), tmp_path / "cache")
    assert caught.value.exit_code == 5


def test_climbing_paths_and_special_modes_do_not_reach_the_host(machine, tmp_path):
    setuid = Entry(path="usr/bin/tool", mode=0o104755, size=0)
    debs, artifacts = machine(setuid)
    found = unpack(debs, artifacts, tmp_path / "cache")

    assert oct((tmp_path / "cache" / found.home.split("/")[-2] / "usr/bin/tool").stat().st_mode) == "0o100755"
    with pytest.raises(UnsafePath):
        unpack(*machine(Entry(path="usr/lib/../../../x", mode=0o100644)), tmp_path / "cache")


def test_the_host_python_is_not_asked(machine, tmp_path):
    debs, artifacts = machine(files={"usr/bin/python3.13": b"x"})

    assert sys.executable not in unpack(debs, artifacts, tmp_path / "cache").argv
