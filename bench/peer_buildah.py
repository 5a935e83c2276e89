"""Peer: ``buildah bud`` and ``buildah push``, Debian's: Docker's verbs without its daemon, gzip on every core.

A Containerfile with uv inside, its cache warm, bytecode compiled; pushed as gzip at its default level.
"""

from __future__ import annotations

from pathlib import Path

from contents import Contents
from measure import Cost, measured
from scratch import Bench, need, tool
from servers import Registry


class Buildah:
    """A container store of its own, with the base image imported and pushed: outside of what is measured."""

    repository = "buildah/env"  # of tag 1

    def __init__(self, bench: Bench, made: Contents, at: Registry) -> None:
        need("buildah", "runc")
        self._bench, self._made, self._at = bench, made, at
        self._folder = bench.folder("buildah")
        self._words: list[str | Path] = [
            tool("buildah"),
            "--root",
            self._folder / "root",
            "--runroot",
            self._folder / "run",
        ]
        self._words += ["--storage-driver", "overlay"]
        container = self._run("from", "scratch").stdout.strip()
        self._run("add", "-q", container, made.base, "/")
        self._run("commit", "-q", "--rm", container, "base:1")
        self._run("push", "-q", "--tls-verify=false", "base:1", f"docker://{at.host}/buildah/base:1")
        (self._folder / "context").mkdir()
        (self._folder / "Containerfile").write_text(
            f"FROM localhost/base:1\nENV PATH=/opt/env/bin:/usr/local/bin:/usr/bin:/bin\nRUN {made.install('copy')}\n"
        )

    def close(self) -> None:
        """Nothing of it runs on."""

    def build(self) -> Cost:
        """The wheels and the cache mounted."""
        volumes = [f"--volume={folder}:{folder}" for folder in (self._made.wheels, self._made.uv_cache)]
        words = ["bud", "-q", "--isolation=chroot", "--no-cache", *volumes, "-t", "env:1"]
        return self._run(*words, "-f", self._folder / "Containerfile", self._folder / "context")

    def push(self) -> Cost:
        return self._run("push", "-q", "--tls-verify=false", "env:1", f"docker://{self._at.host}/{self.repository}:1")

    def _run(self, *words: str | Path) -> Cost:
        return measured([*self._words, *words], log=self._bench.log)
