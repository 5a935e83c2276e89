import importlib.util
import marshal
import random
import re
import stat
import sys
import threading
import time

import pytest

from envbuilder import proc
from envbuilder.layer import pyc
from envbuilder.layer.compile_worker import _compile
from envbuilder.layer.pyc import (
    CompilerDied,
    ForeignInterpreter,
    ImageCompiler,
    LocalInterpreter,
    compile_entries,
    compiled_path,
    debian_modules,
)
from envbuilder.layer.tree import directory, file, symlink

#: This test's own interpreter, started as the image's would be.
HERE = LocalInterpreter(
    argv=(sys.executable,),
    home=sys.base_prefix,
    version=f"{sys.version_info[0]}.{sys.version_info[1]}",
    identity="sha256:" + "0" * 64,
)


def code_of(compiled):
    return marshal.loads(compiled[16:])


def test_a_pyc_is_what_the_interpreter_loads_without_looking_at_the_source():
    (compiled,) = ImageCompiler(interpreter=HERE).compile([("/opt/x.py", b"answer = 6 * 7\n")])
    scope = {}
    exec(code_of(compiled), scope)

    assert compiled[:4] == importlib.util.MAGIC_NUMBER
    assert compiled[4:8] == b"\1\0\0\0"
    assert compiled[8:16] == importlib.util.source_hash(b"answer = 6 * 7\n")
    assert (scope["answer"], code_of(compiled).co_filename) == (42, "/opt/x.py")


@pytest.mark.parametrize(
    "source",
    [b"print 'old'", b"\0", b"# -*- coding: nonsense -*-\n", b"x = '\xff'", b"(" * 400, b"return"],
)
def test_a_source_that_does_not_compile_has_no_pyc_and_does_not_disturb_the_others(source):
    answers = list(ImageCompiler(interpreter=HERE).compile([("/a.py", b"a"), ("/b.py", source), ("/c.py", b"")]))

    assert [answer is None for answer in answers] == [False, True, False]


def test_answers_come_in_order_over_many_batches_and_processes(monkeypatch):
    monkeypatch.setattr(pyc, "_BATCH_FILES", 3)
    sources = [(f"/{number}.py", f"n = {number}".encode()) for number in range(11)]
    one = list(ImageCompiler(interpreter=HERE).compile(sources))
    two = list(ImageCompiler(interpreter=HERE, jobs=2).compile(iter(sources)))

    assert [code_of(answer).co_filename for answer in one] == [path for path, _ in sources]
    assert one == two


def test_no_more_batches_are_read_ahead_than_memory_is_meant_for(monkeypatch):
    monkeypatch.setattr(pyc, "_BATCH_FILES", 1)
    monkeypatch.setattr(pyc, "_AHEAD", 20)
    taken = []

    def sources():
        for number in range(20):
            taken.append(number)
            yield f"/{number}.py", b"#" * 10

    answers = ImageCompiler(interpreter=HERE, jobs=1).compile(sources())
    next(answers)

    assert len(taken) == 3
    assert len(list(answers)) == 19


class Compiles:
    """A runner that notes the file names of each batch, and waits with its first answer until it may go on."""

    def __init__(self, *, failing=""):
        self.batches, self.failing, self.may_go_on = [], failing, threading.Event()

    def __call__(self, argv, *, stdin, **_options):
        names = re.findall(rb"/[a-z]+[.]py", stdin)
        self.batches.append([name.decode() for name in names])
        assert len(self.batches) > 1 or self.may_go_on.wait(10)
        if self.failing:
            if self.failing.encode() in stdin:
                return proc.Completed(1, b"", b"no")
            time.sleep(0.03)
        return proc.Completed(0, b"\1\0\0\0x" * len(names), b"")


def batches_of(monkeypatch, runner, sizes):
    """Compile a batch of each of ``sizes``; all are read before the first has been compiled."""
    monkeypatch.setattr(pyc, "_BATCH_FILES", 1)

    def sources():
        for name, size in sizes.items():
            yield f"/{name}.py", b"#" * size
        runner.may_go_on.set()

    return list(ImageCompiler(interpreter=HERE, jobs=1, runner=runner).compile(sources()))


def test_the_largest_batches_that_wait_are_compiled_first_and_answers_stay_in_order(monkeypatch):
    runner = Compiles()

    answers = batches_of(monkeypatch, runner, {"a": 1, "b": 2, "c": 9, "d": 2, "e": 5})

    assert runner.batches == [["/a.py"], ["/c.py"], ["/e.py"], ["/b.py"], ["/d.py"]]
    assert answers == [b"x"] * 5


def test_nothing_more_is_compiled_after_a_batch_that_failed(monkeypatch):
    runner = Compiles(failing="/a.py")

    with pytest.raises(CompilerDied, match=r"while it compiled /a.py\nno"):
        batches_of(monkeypatch, runner, dict.fromkeys("abcdefgh", 1))

    assert len(runner.batches) < 8


def test_a_batch_ends_at_its_number_of_files_or_bytes():
    small = [("/x.py", b"x")] * (pyc._BATCH_FILES + 1)
    large = [("/x.py", bytes(pyc._BATCH_SIZE - 1))] * 3

    assert [len(batch) for batch in pyc._batches(small)] == [pyc._BATCH_FILES, 1]
    assert [len(batch) for batch in pyc._batches(large)] == [2, 1]


def test_a_crash_names_the_file_that_was_being_compiled():
    def crashed(argv, **_options):
        first = _compile("/a.py", b"")
        return proc.Completed(-11, len(first).to_bytes(4, "little") + first + b"\7", b"Segmentation fault")

    compiler = ImageCompiler(interpreter=HERE, runner=crashed)

    with pytest.raises(CompilerDied, match=r"exit status -11 while it compiled /b.py\nSegmentation fault"):
        list(compiler.compile([("/a.py", b""), ("/b.py", b""), ("/c.py", b"")]))


def test_a_request_that_ends_early_is_not_answered():
    done = proc.run([sys.executable, "-c", pyc._worker()], stdin=(99).to_bytes(8, "little") + b"x", check=False)

    assert (done.status, done.stdout, done.stderr) == (1, b"", b"the request ends early\n")


def test_an_interpreter_that_does_not_start_is_told_apart_from_a_foreign_one(tmp_path):
    foreign = tmp_path / "python"
    foreign.write_bytes(b"\x7fELF" + bytes(60))
    foreign.chmod(0o755)
    false = LocalInterpreter(argv=("/bin/false",), home="/", version="3.13", identity="")
    other = LocalInterpreter(argv=(str(foreign),), home="/", version="3.13", identity="")

    with pytest.raises(CompilerDied, match="/bin/false: exit status 1"):
        ImageCompiler(interpreter=false).probe()
    with pytest.raises(ForeignInterpreter, match="this host cannot run it"):
        ImageCompiler(interpreter=other).probe()
    ImageCompiler(interpreter=HERE).probe()


def test_the_interpreter_knows_nothing_of_the_host(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    seen = {}

    def record(argv, *, env, **options):
        seen.update(env)
        return proc.run(argv, env=env, **options)

    ImageCompiler(interpreter=HERE, runner=record).probe()

    assert set(seen) == {"PYTHONHOME", "PYTHONHASHSEED", "PYTHONSAFEPATH", "PYTHONUTF8"}


def test_the_identity_is_of_the_interpreter_and_the_rules():
    other = LocalInterpreter(argv=("/elsewhere",), home="/elsewhere", version=HERE.version, identity=HERE.identity)
    newer = LocalInterpreter(argv=HERE.argv, home=HERE.home, version=HERE.version, identity="sha256:" + "1" * 64)

    assert ImageCompiler(interpreter=HERE).identity == ImageCompiler(interpreter=other, jobs=4).identity
    assert ImageCompiler(interpreter=HERE).identity != ImageCompiler(interpreter=newer).identity


class Echo:
    identity = "echo"
    cache_tag = "cpython-313"

    def compile(self, sources):
        return (path.encode() for path, _ in sources)


def test_modules_are_compiled_in_the_order_of_their_paths():
    entries = [file(f"lib/{name}.py", b"") for name in ("b", "a", "c/d", "c-")]
    random.shuffle(entries)

    assert [entry.path for entry in compile_entries(entries, Echo())] == [
        "lib/__pycache__/a.cpython-313.pyc",
        "lib/__pycache__/b.cpython-313.pyc",
        "lib/__pycache__/c-.cpython-313.pyc",
        "lib/c/__pycache__/d.cpython-313.pyc",
    ]


def test_what_is_no_plain_file_is_not_compiled_nor_is_a_giant(monkeypatch):
    monkeypatch.setattr(pyc, "_MAX_SOURCE", 10)
    entries = [symlink("a.py", "b.py"), directory("c.py"), file("d.py", bytes(11)), file("pkg/e.py", bytes(10))]
    compiled = list(compile_entries(entries, Echo()))

    assert [entry.path for entry in compiled] == ["pkg/__pycache__/e.cpython-313.pyc"]
    assert stat.S_IMODE(compiled[0].mode) == 0o644


def test_of_a_deb_the_modules_of_python_are_compiled():
    paths = [
        "usr/lib/python3.13/os.py",
        "usr/lib/python3/dist-packages/x/y.py",
        "usr/share/x.py",
        "usr/lib/python3.13/x",
    ]

    assert [entry.path for entry in debian_modules(file(path, b"") for path in paths)] == paths[:2]


def test_a_module_without_a_directory_has_its_pyc_beside_it_too():
    assert compiled_path("a/b.c.py", "cpython-313") == "a/__pycache__/b.c.cpython-313.pyc"
