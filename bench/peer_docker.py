"""Peer: ``docker build`` and ``docker push``, by a Docker engine of our own with BuildKit inside (Debian's docker.io).

A Dockerfile with uv inside: wheels and uv's cache are cache mounts, as BuildKit's own documentation advises; the cache
is warm, bytecode is compiled, the layer goes through gzip, the only compression that ``docker push`` has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from contents import Contents
from measure import Cost, measured, tree_cpu_seconds
from scratch import Bench, Unavailable, need, tool
from servers import Registry, die_with_us

#: Debian's client beside Debian's engine: another ``docker`` on the PATH may want a buildx plugin that is not there.
_CLIENT = Path("/usr/bin/docker")


class Docker:
    """An engine with an image store of its own, the base image imported and pushed, the cache warm: not measured.

    from_wheels: the engine has the wheels, but uv's cache is empty.
    """

    repository = "docker/env"  # of tag 1

    def __init__(self, bench: Bench, made: Contents, at: Registry, *, from_wheels: bool = False) -> None:
        need("dockerd", "containerd", "runc")
        if not _CLIENT.exists():
            raise Unavailable(f"missing: {_CLIENT}. Run make bench, which installs it.")
        self._bench, self._made, self._at = bench, made, at
        self._folder = bench.folder("docker")
        self._engine = self._start()
        self._run("import", made.base, f"{at.host}/docker/base:1")
        self._run("push", "-q", f"{at.host}/docker/base:1")
        cached = made.install("copy", wheels="/wheels", cache="/cache")
        head = f"FROM {at.host}/docker/base:1\nENV PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin\nRUN "

        def write(cache: str) -> None:
            mounts = f"--mount=type=bind,target=/wheels --mount=type=cache,id={cache},target=/cache"
            (self._folder / "Dockerfile").write_text(f"{head}{mounts} {cached}\n")

        write("warm")
        # Fills the cache mount and sends the wheels to the engine, which keeps both.
        self._build("warm:1")
        self._run("rmi", "-f", "warm:1")
        if from_wheels:
            write("empty")

    def build(self) -> Cost:
        """``docker build``."""
        return self._build("env:1")

    def push(self) -> Cost:
        """``docker push``."""
        target = f"{self._at.host}/{self.repository}:1"
        self._run("tag", "env:1", target)
        return self._run("push", "-q", target)

    def close(self) -> None:
        """Stop the engine."""
        self._engine.send_signal(signal.SIGTERM)
        try:
            self._engine.wait(30)
        except subprocess.TimeoutExpired:
            self._engine.kill()
            self._engine.wait()

    def _build(self, name: str) -> Cost:
        words = ["build", "-q", "--no-cache", "--network=none", "-t", name]
        return self._run(*words, "-f", self._folder / "Dockerfile", self._made.wheels)

    def _run(self, *words: str | Path) -> Cost:
        """CPU and memory are the engine's too: it does the work."""
        before = tree_cpu_seconds(self._engine.pid)
        argv = [_CLIENT, "-H", f"unix://{self._socket}", *words]
        cost = measured(argv, log=self._bench.log, environ={"DOCKER_BUILDKIT": "1"}, also=self._engine.pid)
        return replace(cost, cpu_seconds=cost.cpu_seconds + tree_cpu_seconds(self._engine.pid) - before)

    @property
    def _socket(self) -> Path:
        return self._folder / "engine.sock"

    def _start(self) -> subprocess.Popen[bytes]:
        words = [tool("dockerd"), "--data-root", self._folder / "data", "--exec-root", self._folder / "exec"]
        words += ["--pidfile", self._folder / "pid", "-H", f"unix://{self._socket}", "--iptables=false"]
        words += ["--ip6tables=false", "--bridge=none", "--ip-forward=false", "--ip-masq=false", "-l", "warn"]
        with (self._folder / "engine.log").open("ab") as log:
            engine = subprocess.Popen(
                words,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
                preexec_fn=die_with_us,  # noqa: PLW1509  one prctl; this process has no threads yet
            )
        for _ in range(600):
            if engine.poll() is not None:
                break
            if not subprocess.run(
                [_CLIENT, "-H", f"unix://{self._socket}", "version"], check=False, capture_output=True
            ).returncode:
                return engine
            time.sleep(0.05)
        engine.kill()
        raise Unavailable(f"dockerd does not run here:\n{(self._folder / 'engine.log').read_text()[-800:]}")
