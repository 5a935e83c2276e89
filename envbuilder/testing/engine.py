"""A Docker engine of its own for tests: all its files below one directory, no network, stopped at the end."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from envbuilder import proc
from envbuilder.testing.servers import ServerNotStarted

_START_TIMEOUT_S = 30.0


@contextlib.contextmanager
def docker_engine(directory: Path) -> Iterator[str]:
    """Start dockerd below ``directory``; its host, ``unix://...``.

    Raises:
        ServerNotStarted: it is not installed, or this machine does not let it run (it needs root).
    """
    program = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        raise ServerNotStarted("dockerd: not found", hint="Install Debian's docker.io.")
    # A socket's path has at most 107 characters (unix(7)).
    sockets = Path(tempfile.mkdtemp(prefix="engine-"))
    words: list[str | Path] = [program, "--data-root", directory / "data", "--exec-root", sockets / "exec"]
    words += ["--pidfile", sockets / "pid", "--host", f"unix://{sockets}/s", "--storage-driver", "vfs"]
    words += ["--iptables=false", "--ip6tables=false", "--bridge=none", "--log-level", "warn"]
    with (directory / "log").open("wb") as log:
        process = proc.spawn(
            words, stdout=log.fileno(), stderr=log.fileno(), env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(sockets / "s"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerNotStarted(f"dockerd: did not start: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield f"unix://{sockets}/s"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(sockets)


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(str(path))
            client.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200" in client.recv(100)
    except OSError:
        return False
