"""An interpreter that is kept running answers as a fresh one does, and never outlives or outwaits us."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuilder import proc
from envbuilder.layer import compile_server
from envbuilder.layer.compile_server import close_idle, warm
from envbuilder.layer.pyc import _question, _worker

ENV = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
ARGV = (sys.executable, "-s", "-S", "-B", "-c", _worker())
#: Modules of the standard library: some of them intern the same strings.
SOURCES = sorted(Path(os.__file__).parent.glob("[a-d]*.py"))


@pytest.fixture(autouse=True)
def _none_left():
    yield
    close_idle()


def request(files):
    data = b"".join(part for path in files for part in _question(str(path), path.read_bytes()))
    return len(data).to_bytes(8, "little") + data


def test_answers_are_the_same_in_whatever_order_batches_come_and_those_of_a_fresh_process():
    batches = [SOURCES[start : start + 4] for start in range(0, 24, 4)]
    alone = {}
    for batch in batches:
        alone[batch[0]] = warm(ARGV, env=ENV, stdin=request(batch)).stdout
        close_idle()
    random.Random(7).shuffle(batches)
    kept = {batch[0]: warm(ARGV, env=ENV, stdin=request(batch)).stdout for batch in batches}
    fresh = {batch[0]: proc.run(ARGV, env=ENV, stdin=request(batch)).stdout for batch in batches}

    assert kept == alone
    assert sum(len(servers) for servers in compile_server._idle.values()) == 1
    # Decision 0003: a process of its own is a first fork's equal, which with 3.10 is another than a later one's.
    assert kept == fresh or sys.version_info < (3, 11)


def test_what_says_no_is_told_with_its_words_and_not_asked_again():
    refused = warm(ARGV, env=ENV, stdin=(99).to_bytes(8, "little") + b"x", check=False)

    assert (refused.status, refused.stdout, refused.stderr) == (1, b"", b"the request ends early\n")
    assert not any(compile_server._idle.values())
    with pytest.raises(proc.ProgramFailed, match="the request ends early"):
        warm(ARGV, env=ENV, stdin=(99).to_bytes(8, "little"))


def test_a_crash_in_the_middle_gives_what_was_compiled_before_it():
    crashing = _worker().replace("source_hash(source)", "source_hash(source) if source else os.abort()")
    sources = _question("/a.py", b"a") + _question("/b.py", b"") + _question("/c.py", b"c")
    data = b"".join(sources)
    done = warm((*ARGV[:-1], crashing), env=ENV, stdin=len(data).to_bytes(8, "little") + data, check=False)

    assert done.status == -signal.SIGABRT
    assert len(done.stdout) == 4 + int.from_bytes(done.stdout[:4], "little")


def test_one_that_does_not_answer_in_time_is_ended_with_all_that_it_forked():
    sleeping = _worker().replace("read, write = ", "__import__('time').sleep(60); read, write = ")
    before = time.monotonic()
    with pytest.raises(proc.ProgramFailed, match=r"no answer within 0\.2 s"):
        warm((*ARGV[:-1], sleeping), env=ENV, stdin=request(SOURCES[:1]), timeout_s=0.2)

    assert time.monotonic() - before < 5
    assert not any(compile_server._idle.values())


@pytest.mark.slow
def test_they_end_when_we_are_killed():
    code = (
        "import sys, os\nfrom envbuilder.layer.compile_server import warm, _idle\nfrom envbuilder.layer.pyc import _worker\n"
        f"warm((*{ARGV[:-1]!r}, _worker()), env={ENV!r}, stdin=bytes(8))\n"
        "[[server]] = _idle.values()\nprint(server.process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    kept = int(done.stdout)
    for _ in range(100):
        if not Path(f"/proc/{kept}").exists() or ") Z " in Path(f"/proc/{kept}/stat").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("it still runs")

    assert done.returncode == -signal.SIGKILL
