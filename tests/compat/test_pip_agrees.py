"""The oracle of wheels: pip itself, run by the image's interpreter in a venv of the same shape."""

import csv
import io
import os
import stat
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pip
import pytest

from envbuilder import proc
from envbuilder.cli.settings import load_settings
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.interpreter import InterpreterPackages, interpreter_packages, unpack_interpreter
from envbuilder.layer.pyc import ImageCompiler, LocalInterpreter, compile_entries, debian_modules
from envbuilder.layer.tree import file
from envbuilder.layer.wheel import wheel_entries
from envbuilder.lock.archives import find_archives
from envbuilder.lock.codec import load
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.settings import read_python_indexes
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.zoo import wheel_zoo

pytestmark = [pytest.mark.slow, pytest.mark.network]

LOCK = Path(__file__).resolve().parents[2] / "lockfiles/hello/linux-x86_64.lock.toml"
#: Source packages whose binaries a whole standard library needs.
STDLIB = {"python3.13", "expat", "zlib", "openssl", "libffi", "bzip2", "xz-utils"}
EVERYTHING = {
    "Whole_Thing/__init__.py": b"import sys\n",
    "Whole_Thing/old.py": b"print 'no'\n",
    "Whole_Thing/run.sh": b"#!/bin/sh\n",
    'Whole_Thing/caf\u00e9, "x".txt': b"",
    "{data}/purelib/pure.py": b"1\n",
    "{data}/platlib/plat.so": b"\x7fELF",
    "{data}/scripts/script": b"#!python -u\nprint()\n",
    "{data}/scripts/windows": b"#!pythonw\nprint()\n",
    "{data}/scripts/native": b"\x7fELF",
    "{data}/scripts/go-script.py": b"old wrapper",
    "{data}/data/share/doc.txt": b"doc",
    "{data}/data/lib64/alias.txt": b"alias",
    "{data}/headers/a/b.h": b"int x;",
}
POINTS = "[console_scripts]\ngo = pure:main\nDeep = a.b:C.d [extra]\n[gui_scripts]\nshow = pure:show\n"


@dataclass(frozen=True)
class Image:
    lock: object
    artifacts: ArtifactCache
    interpreter: LocalInterpreter


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """``hello``: its artefacts, and its interpreter with a whole standard library."""
    settings = load_settings(project=None, environ=os.environ, flags={}, uid=os.geteuid())
    artifacts = ArtifactCache(
        Path(settings.get("cache")), indexes=read_python_indexes(os.environ, {}).all, mirrors=find_archives({})
    )
    lock = load(LOCK.read_bytes(), source="hello")
    packages = interpreter_packages(lock.debs, lock.python)
    whole = tuple(deb for deb in lock.debs if deb.source in STDLIB and deb not in packages.deciding)
    packages = InterpreterPackages(deciding=packages.deciding, running=whole)
    cache = tmp_path_factory.mktemp("interpreter")
    return Image(lock, artifacts, unpack_interpreter(packages, artifacts, lock.python, lock.platform, cache=cache))


def install(image, folder, wheels):
    """What pip makes of ``wheels``, by path from ``folder``."""
    prefix, runner = folder / "opt/env", folder / "pip"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "lib/python3.13/site-packages").mkdir(parents=True)
    (prefix / "lib64").symlink_to("lib")
    (prefix / "pyvenv.cfg").write_text(f"home = {image.interpreter.home}/bin\n")
    runner.mkdir()
    (runner / "pip").symlink_to(Path(pip.__file__).parent)
    loader, *rest = image.interpreter.argv
    argv = [loader, "--argv0", str(prefix / "bin/python3"), *rest, "-m", "pip", "install", "--no-deps", "--no-index"]
    options = ["--no-compile", "--no-cache-dir", "--quiet", "--no-warn-script-location"]
    environment = {"PYTHONPATH": str(runner), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    proc.run([*argv, *options, *wheels], env=environment)
    return {
        str(path.relative_to(folder)): path
        for path in prefix.rglob("*")
        if path.is_file() and path.name not in ("pyvenv.cfg", "REQUESTED", "direct_url.json")
    }


def rows(data):
    """RECORD without what names the installer or its interpreter's path.

    pip keeps the row of a wrapper that it left out, and names files by lib64, our link to lib.
    """
    table = {row[0]: tuple(row[1:]) for row in csv.reader(io.StringIO(data.decode(), newline=""))}
    wrappers = tuple(f".data/scripts/go{ending}" for ending in ("", ".exe", "-script.py"))
    left_out = (".dist-info/REQUESTED", ".dist-info/direct_url.json", *wrappers)
    return {
        path.replace("/lib64/", "/lib/"): None if "/bin/" in path or path.endswith("/INSTALLER") else row
        for path, row in table.items()
        if not path.endswith(left_out)
    }


def comparable(path, data):
    if path.endswith(".dist-info/INSTALLER"):
        return b""
    if path.endswith(".dist-info/RECORD"):
        return rows(data)
    return data.partition(b"\n")[2] if "/bin/" in path and data.startswith(b"#!") else data


def content(entry):
    return entry.open().read() if entry.open else b""


@pytest.mark.parametrize("what", ["hello", "everything"])
def test_pip_puts_the_same_files_at_the_same_paths_with_the_same_modes(image, tmp_path, what):
    python = image.lock.python
    if what == "hello":
        wheels = [(image.artifacts.file(wheel), wheel) for wheel in image.lock.wheels]
    else:
        data = make_wheel("Whole-Thing", files=EVERYTHING, entry_points=POINTS, executable=["Whole_Thing/run.sh"])
        wheels = [(tmp_path / "whole.whl", locked_wheel("Whole-Thing", data))]
        wheels[0][0].write_bytes(data)
    (tmp_path / "named").mkdir()
    for path, wheel in wheels:
        (tmp_path / "named" / wheel.file).symlink_to(path)
    old_umask = os.umask(0o022)
    try:
        theirs = install(image, tmp_path, [str(tmp_path / "named" / wheel.file) for _, wheel in wheels])
    finally:
        os.umask(old_umask)
    ours = {entry.path: entry for path, wheel in wheels for entry in wheel_entries(path, wheel, python=python)}

    assert ours.keys() == theirs.keys()
    assert [
        path
        for path, entry in ours.items()
        if comparable(path, content(entry)) != comparable(path, theirs[path].read_bytes())
    ] == []
    # Scripts are executable here even where the wheel forgot the bit.
    assert {
        path for path, entry in ours.items() if stat.S_IMODE(entry.mode) != theirs[path].stat().st_mode & 0o777
    } <= {f"opt/env/bin/{name}" for name in ("script", "windows", "native")}


@pytest.fixture(scope="module")
def zoo(image, tmp_path_factory):
    """Each awkward wheel with our entries, and what pip makes of all of them in one prefix."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "named").mkdir()
    found, files = {}, []
    for specimen in wheel_zoo():
        wheel = locked_wheel(specimen.name, specimen.data)
        path = folder / "named" / wheel.file
        path.write_bytes(specimen.data)
        files.append(str(path))
        found[specimen.name] = {entry.path: entry for entry in wheel_entries(path, wheel, python=image.lock.python)}
    old_umask = os.umask(0o022)
    try:
        return found, install(image, folder, files)
    finally:
        os.umask(old_umask)


@pytest.mark.parametrize("name", [specimen.name for specimen in wheel_zoo()])
def test_pip_makes_the_same_of_an_awkward_wheel(zoo, name):
    ours, theirs = zoo[0][name], zoo[1]
    different = [
        path
        for path, entry in ours.items()
        if path not in theirs or comparable(path, content(entry)) != comparable(path, theirs[path].read_bytes())
    ]
    if name == "record":  # pip keeps the digests that the wheel has, ours are all sha256
        different = [path for path in different if not path.endswith("/RECORD")]
    modes = {path for path, entry in ours.items() if stat.S_IMODE(entry.mode) != theirs[path].stat().st_mode & 0o777}

    assert different == []
    assert all(path.startswith("opt/env/bin/") and ours[path].mode & 0o111 == 0o111 for path in modes)


def test_pip_makes_nothing_of_the_zoo_that_we_do_not(zoo):
    ours = set().union(*zoo[0].values())

    assert {path for path in zoo[1] if path not in ours} == set()


def test_the_images_interpreter_takes_our_pyc_files_without_reading_the_sources(image, tmp_path):
    compiler = ImageCompiler(interpreter=image.interpreter)
    (entry,) = compile_entries([file("opt/env/x.py", b"answer = 42\n")], compiler)
    target = tmp_path / "__pycache__" / entry.path.rpartition("/")[2]
    target.parent.mkdir()
    target.write_bytes(content(entry))
    (tmp_path / "x.py").write_text("another source, of another time")
    done = proc.run(
        [*image.interpreter.argv, "-S", "-c", "import x; print(x.answer, x.__spec__.cached)"],
        env={**image.interpreter.environment(), "PYTHONPATH": str(tmp_path)},
    )

    assert done.stdout.decode() == f"42 {target}\n"


def test_compiling_again_with_other_processes_and_hash_seeds_gives_the_same_bytes(image, monkeypatch):
    (package,) = (deb for deb in image.lock.debs if deb.name == "libpython3.13-stdlib")
    modules = list(islice(debian_modules(deb_entries(image.artifacts.file(package), package)), 400))
    once = {e.path: content(e) for e in compile_entries(modules, ImageCompiler(interpreter=image.interpreter, jobs=1))}
    environment = {**image.interpreter.environment(), "PYTHONHASHSEED": str(time.time_ns() % 1000)}
    monkeypatch.setattr(LocalInterpreter, "environment", lambda _self: environment)
    again = compile_entries(reversed(modules), ImageCompiler(interpreter=image.interpreter, jobs=2))

    assert len(once) > 300
    assert {entry.path: content(entry) for entry in again} == once


def test_a_real_interpreter_is_unpacked_in_seconds_and_runs(image, tmp_path):
    packages = interpreter_packages(image.lock.debs, image.lock.python)
    found = unpack_interpreter(
        packages, image.artifacts, image.lock.python, image.lock.platform, cache=tmp_path / "cache"
    )

    ImageCompiler(interpreter=found).probe()
    assert found.identity == packages.identity == image.interpreter.identity
