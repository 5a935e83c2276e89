"""A command in an image is like a command on the host: status, signals, streams; and nothing stays."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUNNER = Path(__file__).with_name("runner.py")

pytestmark = pytest.mark.slow


def wait_for_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def test_output_and_status_are_the_command_s(start):
    process = start("sh", "-c", "echo out; echo err >&2; exit 7")
    out, err = process.communicate(timeout=60)

    assert (out, err, process.returncode) == (b"out\n", b"err\n", 7)


def test_stdin_is_the_command_s(start):
    process = start("cat", stdin=subprocess.PIPE)
    out, _ = process.communicate(b"through\n" * 10_000, timeout=60)

    assert out == b"through\n" * 10_000


def test_the_environment_is_the_image_s_and_the_caller_s(start):
    out, _ = start("env", env={"EXTRA": "1"}).communicate(timeout=60)
    lines = out.decode().splitlines()

    assert {"FROM_IMAGE=yes", "EXTRA=1", "HOME=/root"} < set(lines)


def test_the_user_is_one_of_the_image(start):
    out, _ = start("id", user="alice").communicate(timeout=60)

    assert out == b"uid=1000(alice) gid=1000(alice) groups=1000(alice),44(video)\n"


def test_what_is_written_is_thrown_away(start, node):
    process = start("sh", "-c", "echo x > /data/small && cat /data/small")
    out, _ = process.communicate(timeout=60)
    again, _ = start("cat", "/data/small").communicate(timeout=60)

    assert (out, again) == (b"x\n", b"small\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_reaches_a_command_that_handles_it(start, number):
    process = start("sh", "-c", f"trap 'echo got; exit 9' {number}; echo ready; while :; do sleep 0.05; done")
    wait_for_line(process)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == (b"got\n", 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_does_not_handle_it(start, number):
    process = start("sh", "-c", "echo ready; exec sleep 60")
    wait_for_line(process)
    process.send_signal(number)
    process.communicate(timeout=60)

    assert process.returncode == 128 + number


def test_an_ignored_signal_stays_ignored(start):
    process = start("sh", "-c", "trap '' TERM; echo ready; sleep 1; echo still; exit 3")
    wait_for_line(process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)

    assert (out, process.returncode) == (b"still\n", 3)


def test_children_of_the_command_do_not_outlive_it(start):
    process = start("sh", "-c", "sleep 600 & exit 0")

    assert process.wait(60) == 0


def test_a_terminal_is_given_to_the_command(start, node, layout):
    options = json.dumps({"terminal": True})
    argv = [sys.executable, str(RUNNER), str(layout), str(node.folder), options, "sh", "-c", "tty && exit 5"]
    pid, master = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    output = b""
    try:
        while data := os.read(master, 1000):
            output += data
    except OSError:
        pass  # how Linux tells that the other side is closed
    os.close(master)

    assert b"/dev/pts/" in output
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


def test_a_missing_command_is_told_in_words(start):
    process = start("no-such-command")
    _, err = process.communicate(timeout=60)

    assert b"CommandNotFound: run: the image's 'no-such-command' is not there in its PATH" in err


def test_a_missing_gpu_is_told_when_one_is_insisted_on(start, node):
    process = start("id", gpus="all", cdi_directories=[])
    _, err = process.communicate(timeout=60)

    assert b"NoSuchDevice" in err


def test_a_report_says_what_was_fetched_and_when_the_first_output_came(start, node):
    file = node.folder / "report.json"
    script = "echo first; read go; cat /data/big > /dev/null; sleep 0.3"
    process = start("sh", "-c", script, measure=True, report=str(file), stdin=subprocess.PIPE)
    # The line is passed on when its moment has been noted; what is read before that would count as before it.
    out = wait_for_line(process)
    process.communicate(b"go\n", timeout=60)
    report = json.loads(file.read_text())
    fetched = report["fetched_bytes"]

    assert out == b"first\n"
    assert 0 < fetched["before_first_output"] < fetched["in_all"]
    assert report["seconds"]["mounted"] < report["seconds"]["first_output"] < report["seconds"]["ended"] - 0.3
    assert report["how"] == "erofs lazy"


def test_a_full_run_fetches_all_before_it_starts(start, node):
    file = node.folder / "report.json"
    start("id", full=True, measure=True, report=str(file)).communicate(timeout=60)
    report = json.loads(file.read_text())

    assert report["how"] == "erofs direct"
    assert report["fetched_bytes"]["before_mount"] == report["fetched_bytes"]["in_all"] > 10 << 20


def test_a_closed_stdout_ends_the_command_as_a_pipe_would(start):
    process = start("sh", "-c", "while echo y; do :; done", measure=True)
    wait_for_line(process)
    assert process.stdout is not None
    process.stdout.close()
    begun = time.monotonic()
    process.wait(60)

    assert time.monotonic() - begun < 30
